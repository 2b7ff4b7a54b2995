"""The agent: the process on every host that starts, watches and ends the ranks.

``main`` sets up descriptors, ``agent_loop`` does the I/O, ``node`` (pure) decides what happens.
Never here: the reason why ranks end; the launcher gives it, or the lease does.
"""
