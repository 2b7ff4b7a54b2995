"""Readings of a host: for checks before a run, samples, stacks and versions while ranks run.

Never here: a judgement (``checks``).
"""
