"""dispatch: launch one process per GPU on every host over SSH, with one verdict.

A run flows through the folders in this order::

    cli -> plan -> runner -> transport -> agent (on the host) -> ranks
                     |                       |
                    core  <---- events ------+
                     |
                    sinks (screen, files, journal, report)

``plan`` decides where every rank goes before any host is touched, ``core``
decides what to do about each event, ``runner`` and ``transport`` do it,
``sinks`` tell about it. ``agent`` is the part that travels to the hosts.
"""

__version__ = "0.1.0"
