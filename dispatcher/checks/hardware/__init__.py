"""What joins a host's GPUs to each other and to its network cards; what DCGM says of them.

Never here: GPUs by themselves (``checks.gpu``), RDMA ports (``checks.network``).
"""
