"""The state of ranks now, and which are unlike the others: progress, table, metrics.

Never here: the figures themselves, which hosts take (``remote.probe``).
"""
