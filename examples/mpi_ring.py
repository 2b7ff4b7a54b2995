"""Pass a token once around all ranks: MPI with no mpirun.

dispatch -H n1,n2:2 examples/mpi_ring.py
"""

import socket
from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
token = array("l", [0])

if rank > 0:
    world.Recv(token, source=rank - 1)
token[0] += rank
print(f"rank {rank} of {size} on {socket.gethostname()}: the token is {token[0]}", flush=True)
if size > 1:
    world.Send(token, dest=(rank + 1) % size)
if rank == 0:
    if size > 1:
        world.Recv(token, source=size - 1)
    right = size * (size - 1) // 2
    print(f"the token came back as {token[0]}, {'right' if token[0] == right else 'WRONG'}")
    raise SystemExit(token[0] != right)
