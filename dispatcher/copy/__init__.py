"""Files to many hosts and back, as tar streams over the channel of one command.

``pack`` makes the archive that ``put`` sends; ``unpack`` takes apart what ``get``
received from a host that may be hostile; ``scripts`` is what runs there, in
POSIX sh with ``tar``. A stream a host, no round trip a file, no Python there.
"""
