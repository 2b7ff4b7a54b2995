"""Commands that touch no host: hosts, fold, import, config, report, completion, explain.

Never here: what needs a connection.
"""
