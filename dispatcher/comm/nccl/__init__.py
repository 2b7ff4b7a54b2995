"""NCCL inside a rank: its library through ctypes, its unique id, communicators, device memory.

Never here: what NCCL should be told before a run (``checks.nccl_advice``).
"""
