"""The links of a host's GPUs to each other, to CPUs and to network cards; and DCGM's short test.

Never here: GPUs by themselves (``checks.gpu``), RDMA ports (``checks.network``).
"""
