"""What NCCL will use on a cluster, what is wrong with that, and what it should be told; pure.

Never here: what any job needs of a host (``checks``), or the calls of NCCL (``comm.nccl``).
"""
