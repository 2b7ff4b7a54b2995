"""Connections that outlive a dispatch: one background process of the user's holds them.

``place``   where its socket is, and who may call
``frames``  what passes through the socket
``holder``  the process itself
``link``    the caller's side: one more way to reach hosts

As OpenSSH's ControlPersist does for one host. Nobody is asked for a passphrase there:
keys that need one must be in an SSH agent. Host keys and logins are judged as always,
and by the files as they are when a connection is made.
"""
