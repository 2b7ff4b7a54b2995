"""What NCCL will use on a cluster, and what it should be told; pure."""
