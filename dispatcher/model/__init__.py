"""Values that every room speaks: hosts, names, paths, errors, failures.

It imports no other room. Never here: a thread, a clock, a connection.
"""
