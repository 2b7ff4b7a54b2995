"""Everything that shows or records a run: screen, log files, journal, tables, pages.

A sink gets one stream of events and pieces of output, in the order in which the launcher got them,
and never changes the run. The first sink keeps the state of the run (``run_state``), which the
others read. Sinks run on one thread beside the loop, so that a slow disk or terminal stops no run.
Never here: decisions, connections.
"""
