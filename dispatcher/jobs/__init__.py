"""Jobs in the background: where they are written down, and the door to a running one.

``record``    what a job leaves on this login node, and whether its launcher lives
``protocol``  what passes through a job's local socket: bounded JSON lines and bytes
``control``   the launcher's side of the socket: one more sink, and orders as events
``caller``    the other side, for ``attach`` and ``stop``
``tags``      the few lines of sh that find processes by their run id

It does not start jobs and shows nothing; the commands do.
"""
