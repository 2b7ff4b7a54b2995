"""Many hosts by way of a few: ``TreeTransport``, a transport like any other.

::

    there      what runs on an inner host: joins the streams of commands into one link
    branch     our end of such a link: the one thread that reads and writes it
    stream     a command on a host of the tree, as a ``Link``
    trust      what an inner host is told to reach one below it: words, and host keys
    detours    tells, folded, who had to be connected from here
    transport  who is reached through whom

Who opens whom is planned in ``transport.tree.topology``. An inner host that is reached through
another is a stream whose bytes are themselves a link of streams: nobody but the root knows the
tree, and an inner host passes on what it does not look into.
"""
