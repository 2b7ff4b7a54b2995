"""The Python API, as ``import dispatcher`` offers it: one run from plan to report.

The command line is built on it. Never here: options, the terminal, texts for people.
"""
