"""Commands that run once on every host: exec, shell, connect, put and get.

Each file takes options and starts the work; how it is shown is in ``exec_output``. Never
here: when a host is tried again or given up (``core.exec_machine``), or how files cross
(``transfer``).
"""
