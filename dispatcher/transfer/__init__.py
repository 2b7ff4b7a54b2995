"""``put`` and ``get``: files to many hosts and back, over the channel of one command a host.

This is the launcher's end: it chooses the files, the hosts that pass them on and their places, also
for hosts that may be hostile. The host's end is ``remote.copy``. Never here: options and summaries.
"""
