"""A fan-out command or a copy as it is shown: lines, gathered output, progress, last words.

Never here: which host failed, which the core says (``core.exec_machine``).
"""
