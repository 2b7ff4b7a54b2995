"""SSH inside this process, by paramiko; ``paramiko_internals`` alone touches its private parts.

Never here: reading ssh_config (``ssh_config``), or deciding whom to trust (``ssh_auth``).
"""
