"""dispatch for programs: what ``import dispatcher`` offers, and one run from plan to report.

The command line is built on it: ``cli`` starts runs and commands by the same calls, with
sinks of its own. Never here: options, the terminal, words for people.
"""
