"""Whether a host's key is one that we know, and the keys that we log in with.

Never here: connections. Nothing is trusted that OpenSSH would not trust.
"""
