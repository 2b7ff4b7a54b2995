"""Jobs: their records on this machine, and the socket of a job that runs.

``registry`` has the records, and checks whether a launcher lives; ``job_socket`` the protocol of
the socket; ``control_server`` and ``status`` the launcher's end of it, for a job in the background
and in the foreground. Never here: how a job is started, or shown.
"""
