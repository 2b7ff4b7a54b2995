"""Say who I am: one line from every rank, in the variables a launcher gives it.

dispatch -H n1,n2:2 examples/ranks.py
"""

import os
import socket
import sys

NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
)

facts = " ".join(f"{name}={os.environ.get(name, '-')}" for name in NAMES)
print(f"{socket.gethostname()} pid {os.getpid()}: {facts} args={sys.argv[1:]}", flush=True)
