"""``put`` and ``get``: files to many hosts and back, over the channel of one command a host.

Here is the launcher's end: which files, who passes them on, where they go, also from hosts
that may be hostile. The host's end is ``remote.copy``. Never here: options and summaries.
"""
