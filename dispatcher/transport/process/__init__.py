"""Local programs as links: the system's ``ssh``, a command of the user's, this machine itself.

Never here: anything about SSH that ``ssh`` itself settles.
"""
