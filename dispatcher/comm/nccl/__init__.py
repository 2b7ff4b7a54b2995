"""NCCL inside a rank: its library through ctypes, its unique id, communicators, device memory.

Never here: advice on NCCL's settings before a run (``checks.nccl_advice``).
"""
