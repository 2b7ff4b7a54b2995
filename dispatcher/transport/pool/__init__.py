"""Connections that outlive a launcher: a daemon of the user's keeps them open.

``daemon_socket``   where its socket is, who may call, and what passes through it
``daemon``          the process itself; ``daemon_client``: one launcher that has called it
``pool_transport``  the launcher's side: one more way to reach hosts

Host keys and logins are judged as always, by the files as they are when a connection is made. Never
here: what runs on hosts.
"""
