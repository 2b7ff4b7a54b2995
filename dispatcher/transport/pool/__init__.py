"""Connections that outlive a launcher: a daemon of the user's keeps them open.

``daemon_socket``   the path of its socket, the check of callers, and the messages on it
``daemon``          the process itself; ``daemon_client``: one launcher that has called it
``pool_transport``  the launcher's side: one more way to reach hosts

Host keys and logins are checked as always, by the files as they are when a connection is made.
Never here: the programs that run on hosts.
"""
