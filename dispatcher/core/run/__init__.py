"""A run as machines: its attempts, the tables of hosts and ranks, MPI's fences, the rules.

``run_machine`` goes from attempt to attempt, ``attempt`` from the first connection to the
end of all ranks. Never here: fan-out commands, which have one machine (``core.exec_machine``).
"""
