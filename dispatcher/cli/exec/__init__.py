"""Commands that run once on every host: exec, shell, connect, put and get.

Never here: when a host is tried again or given up (``core.exec_machine``), how files cross
(``transfer``).
"""
