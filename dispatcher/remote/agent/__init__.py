"""The agent: the process on every host that starts, watches and ends the ranks.

``main`` sets up descriptors, ``agent_loop`` does the I/O, ``node`` (pure) says what is to be
done. Never here: why the ranks end; the launcher says so, or the lease does.
"""
