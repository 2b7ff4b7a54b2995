"""The way our code gets onto a host that has none of it: packed, sent, started, then recognised.

``remote`` has the code that is sent; this room packs it, and has the command that loads it and the
few lines of sh for hosts without Python. Never here: the work of that code once it runs.
"""
