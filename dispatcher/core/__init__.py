"""The part that decides: pure machines over events. No I/O, no clock, no threads.

A machine takes one event at a time and answers with actions; ``run`` has the one of a run,
``exec_machine`` that of a fan-out command, ``sudo_password`` whom that tells the password. Whoever
wants to know why dispatch did something reads this folder. Never here: how anything is done.
"""
