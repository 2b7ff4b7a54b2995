"""Pictures of a run, and which of its ranks are silent or unlike the others; metrics.

Never here: the figures themselves, which hosts take (``remote.probe``).
"""
