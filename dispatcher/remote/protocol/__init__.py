"""What both ends of a link speak: frames, packed values, channels with credit; no I/O.

The launcher may import this part of ``remote``, and everybody else does.
"""
