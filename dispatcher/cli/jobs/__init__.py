"""Commands for running jobs: they ask a job's socket or read its files.

Never here: how a job moves to the background (``cli.run.detach``), its answers (``jobs``).
"""
