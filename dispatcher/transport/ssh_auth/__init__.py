"""The check of hosts' keys, and the keys that we log in with.

Never here: connections. We trust nothing that OpenSSH would not trust.
"""
