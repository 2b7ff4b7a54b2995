"""The part that tells: screen, files, journal, report. Sinks change nothing.

Every sink is a fold over one stream of events and output chunks, in the order
the launcher observed them; none asks another part for its state. They all run
on one thread of their own, so a slow disk or terminal never stops the loop.
"""
