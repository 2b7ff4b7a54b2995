"""SSH inside this process, by paramiko; ``paramiko_internals`` alone touches its private parts.

Never here: what ssh_config says (``ssh_config``), or whom to trust (``ssh_auth``).
"""
