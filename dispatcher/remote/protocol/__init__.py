"""The formats on a link, for both ends: frames, packed values, channels with credit; no I/O.

The launcher and all other code may import this part of ``remote``.
"""
