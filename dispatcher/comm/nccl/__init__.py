"""NCCL: its library, its unique id, communicators, device memory."""
