"""The part that does: one loop, one thread per host, one thread for the sinks.

``loop`` takes events from an inbox, asks the core what to do and carries it
out; ``orders`` is what agents are told first; ``host`` is the thread of one host
(connect, boot, read, write); ``reports`` turns what an agent says into events,
trusting nothing; ``feed`` is the sinks' thread. No policy here: *how*, never *whether*.
"""
