"""Commands for jobs that run already: jobs, attach, logs, top, stacks, stop, kill, sweep.

They ask a job's socket or read its files. Never here: how a job comes to run in the
background (``cli.run.detach``), or what it answers (``jobs``).
"""
