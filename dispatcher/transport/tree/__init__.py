"""Many hosts by way of a few: ``TreeTransport``, a transport like any other.

``topology`` plans who opens whom, ``branch`` is the link to one inner host, ``stream`` one
command behind it, ``trust`` what an inner host is told. Nobody but the launcher knows the
tree; what inner hosts run is ``remote.tree_relay``.
"""
