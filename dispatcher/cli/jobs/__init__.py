"""Commands for jobs: they ask a running job's socket, or read the records and files of any job.

Never here: how a job moves to the background (``cli.run.detach``), its answers (``jobs``).
"""
