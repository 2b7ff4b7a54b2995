"""How our code gets onto a host that has none of it: packed, started, told from login noise.

What is sent is in ``remote``; here is how it is packed, the command that loads it, and the
few lines of sh for hosts without Python. Never here: what the code does once it runs.
"""
