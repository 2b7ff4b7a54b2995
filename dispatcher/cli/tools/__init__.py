"""Commands that touch no host: hosts, fold, import, config, report, completion, man.

Never here: what needs a connection.
"""
