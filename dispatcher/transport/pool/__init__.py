"""Connections that outlive a command: one daemon of the user's holds them for the next one.

As OpenSSH's ControlPersist does for one host. ``daemon`` is that process, ``pool_link`` the
side of a command. Nobody is asked for a passphrase there; host keys are judged as always.
Never here: which hosts a command is for.
"""
