"""The settings of the user's ``ssh_config`` for a host, read as OpenSSH reads them.

Never here: connecting; the result is a frozen ``HostConfig``.
"""
