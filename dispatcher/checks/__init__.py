"""Is a host fit for a job? Pure judgements on what was read there.

A check has two halves that never meet. *Reading* happens on the host (``remote.probe``:
files, commands with deadlines, no opinion), *judging* happens here, from those texts alone.
So every judgement is tested from recorded texts, and hosts need no version of it. What
could not be read is INCOMPLETE, never OK. Never here: connections, files, tables for people.
"""
