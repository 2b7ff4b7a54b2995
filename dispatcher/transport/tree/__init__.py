"""Many hosts by way of a few: ``TreeTransport``, a transport like any other.

``topology``        who opens whom
``tree_transport``  who is reached through whom, and from here when that fails
``branch``          our end of the link to an inner host, and the commands that it carries

On an inner host runs ``remote.tree_relay``. Only the root knows the tree: docs/design/tree.md.
"""
