"""The agent: the process on every host that starts, watches and ends the ranks."""
