"""Readings of a host: for checks, named files and modules before a run; samples, stacks, versions.

Never here: a judgement (``checks``).
"""
