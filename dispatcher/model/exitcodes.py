"""What ``dispatch`` exits with, in one place.

====  =====================================================================
code  meaning
====  =====================================================================
0     every planned rank ran and exited 0
1-..  the root cause's own exit code; 128+n when signal n ended that rank
2     usage: bad flag, bad hostfile, impossible plan; no host was touched
93    a rank's own 93 means: do not start this job again (--max-restarts)
124   a time limit of the run was reached
125   dispatch or the cluster failed before or beside the ranks
      (host unreachable, check failed, agent lost, output lost)
126   the program was found on the host but cannot be executed
127   the program was not found on the host
128+n dispatch itself was ended by signal n (130 is Ctrl-C)
====  =====================================================================

A rank may itself exit with 124-127; the verdict and ``report.json`` say whose
code it is. Source of 124-127: timeout(1), env(1); of 128+n: sh(1); of 93: the
launcher of NVIDIA's resiliency extension, which takes it for the same request.
"""

OK = 0
USAGE = 2
NO_RESTART = 93
TIME_LIMIT = 124
CLUSTER = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNAL_BASE = 128


def from_status(status: int) -> int:
    """Exit code for a rank's status: its own code (>= 0), or 128+n for status -n (signal n)."""
    return status if status >= 0 else SIGNAL_BASE - status
