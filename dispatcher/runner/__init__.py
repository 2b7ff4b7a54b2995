"""The part that does: one loop, a thread for each host, one thread for the sinks.

A loop takes events from its inbox, asks the core what to do and does it. A host's data is checked
before it becomes an event. Never here: decisions. It carries them out.
"""
