"""What a run leaves on disk, written and read back: logs of ranks, journal.

Never here: what belongs on the screen, or what follows from it.
"""
