"""Many hosts by way of a few: ``TreeTransport``, a transport like any other.

``topology``        which host opens which
``tree_transport``  the routes through hosts, and from here when they fail
``branch``          our end of the link to an inner host, and the commands that it carries

On an inner host runs ``remote.tree_relay``. Only the root knows the tree: docs/design/tree.md.
"""
