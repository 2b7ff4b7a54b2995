"""Files to many hosts and back, over the channel of one command a host.

``sources`` is what ``put`` sends and ``sending`` talks with the hosts about it; ``fetching``,
``receiving`` and ``place`` are ``get``, from hosts that may be hostile. ``there`` is what
travels, ``program`` how it gets there; ``tree`` lets hosts pass files on. ``pack``, ``unpack``
and ``scripts`` are the way for hosts without Python: a tar, and POSIX sh.
"""
