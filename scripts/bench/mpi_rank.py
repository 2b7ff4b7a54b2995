"""What each rank of ``start.py --mpi`` does: MPI_Init, 128 bytes from rank 0 to all, a barrier."""

import socket
import sys

from mpi4py import MPI

data = bytearray(bytes(range(128)) if MPI.COMM_WORLD.rank == 0 else 128)
MPI.COMM_WORLD.Bcast(data)
assert data == bytes(range(128))
MPI.COMM_WORLD.Barrier()
sys.stdout.write(socket.gethostname() + "\n")  # in one write
