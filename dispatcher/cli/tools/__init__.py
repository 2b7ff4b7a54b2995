"""Commands that touch no host: hosts, fold, import, config, report, completion, explain.

Never here: a command that needs a connection.
"""
