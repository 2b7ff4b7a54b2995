"""Jobs in the background: where they are written down, and the socket of a running one.

``registry`` is what a job leaves on this machine, and whether its launcher lives;
``job_socket`` what passes through its socket, ``control_server`` the launcher's end of it;
``status`` says what a job is doing. Never here: how a job is started, or shown.
"""
