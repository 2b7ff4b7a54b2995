"""What the user's ``ssh_config`` says of a host, read as OpenSSH reads it.

Never here: what is done about it; the result is a frozen ``HostConfig``.
"""
