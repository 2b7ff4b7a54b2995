"""Local programs as links: the system's ``ssh``, the user's command, this machine itself.

Never here: anything about SSH that ``ssh`` itself settles.
"""
