"""The part that decides: pure machines over events, without I/O, clock or threads.

A machine takes one event at a time and answers with actions; ``run`` has the one of a run,
``exec_machine`` that of a fan-out command. Read here why dispatch did something. Never here: how
anything is done.
"""
