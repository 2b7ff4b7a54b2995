"""The host as its kernel shows it: processes, facts, folders, shared memory.

Never here: whether any of it is good or bad.
"""
