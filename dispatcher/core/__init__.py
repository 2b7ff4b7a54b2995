"""The part that decides: pure machines over events, without I/O, clock or threads.

A machine takes one event at a time and answers with actions; ``run`` has the machine of a run,
``exec_machine`` the machine of a fan-out command. Read here why dispatch did something. Never here:
how anything is done.
"""
