"""``dispatch check`` and its three tables: hosts, pairs of hosts, NCCL.

Never here: the judgements themselves (``checks``).
"""
