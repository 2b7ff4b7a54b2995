"""The part that tells: screen, log files, journal, tables. Sinks change nothing.

Every sink is a fold over one stream of events and pieces of output, in the order in which
the launcher saw them; none asks another part for its state. They run on a thread of their
own, so a slow disk or terminal stops no run. Never here: decisions, connections.
"""
