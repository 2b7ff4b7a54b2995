"""Jobs: their records on this machine, and the socket of a job that runs.

``registry`` has the records, and checks whether a launcher lives; ``job_socket`` the protocol of
the socket; ``job_server`` the launcher's end of it; ``lost_hosts`` warns of hosts that earlier jobs
have lost; ``code_state`` records git's view of a job's code. Never here: how a
job is started, or shown.
"""
