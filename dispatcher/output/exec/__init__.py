"""A fan-out command or a copy as it is shown: lines, gathered output, progress, the summary.

Never here: which host failed (``core.exec_machine``).
"""
