"""mpi4py's own tests under dispatch; see ``__main__``."""
