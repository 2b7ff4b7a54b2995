"""The Python API: what ``import dispatcher`` offers, and one run from plan to report.

The command line is built on it. Never here: options, the terminal, words for people.
"""
