"""What the ranks do now, and which of them is unlike the others: progress, table, metrics.

Never here: figures themselves, which hosts take (``remote.probe``).
"""
