"""Everything that shows or records a run: screen, log files, journal, tables, pages.

A sink is a fold over one stream of events and pieces of output, in the order in which the launcher
got them. A sink never changes the run, and asks no other part for its state. Sinks run on one
thread beside the loop, so that a slow disk or terminal stops no run. Never here: decisions,
connections.
"""
