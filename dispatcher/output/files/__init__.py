"""The files that a run leaves on disk, written and read back: logs of ranks, journal, hosts left.

Never here: the screen.
"""
