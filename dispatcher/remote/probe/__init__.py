"""Readings of a host: for checks before a run, samples and stacks while ranks run.

Never here: a judgement (``checks``).
"""
