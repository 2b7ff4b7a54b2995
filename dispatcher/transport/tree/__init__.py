"""Many hosts by way of a few: ``TreeTransport``, a transport like any other.

``topology``        who opens whom
``tree_transport``  who is reached through whom, and from here when that fails
``branch``          our end of the link to an inner host, and the commands that it carries

On an inner host runs ``remote.tree_relay``, which joins the streams of commands into one link
(``remote.protocol.mux``). An inner host that is reached through another is a stream whose bytes
are themselves a link of streams: nobody but the root knows the tree, and an inner host passes on
what it does not look into.
"""
