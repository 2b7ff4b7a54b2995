"""Jobs: their records on this machine, and the socket of a job that runs.

``registry`` has the records, and checks whether a launcher lives; ``host_history`` finds in them
which hosts failed, are in use, or were lost; ``code_state`` records git's view of a job's code.
``job_socket`` has the protocol of the socket, ``job_server`` the launcher's end of it. Never here:
how a job is started, or shown.
"""
