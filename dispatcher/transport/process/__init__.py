"""Local programs as links: the system's ``ssh``, any command, this machine."""
