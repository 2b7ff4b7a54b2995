"""Is a host fit for a job? Pure judgements on readings of hosts.

A check has two halves. *Reading* happens on the host (``remote.probe``: files, commands with
deadlines, no opinion), *judging* happens at home, from those texts alone. So every judgement is
tested from recorded texts. A check that lacks its reading is INCOMPLETE, never OK. Never here:
connections, files, tables for the screen.
"""
