"""The part that decides: pure functions over events. No I/O, no clock, no threads.

``job.Job`` takes one event at a time and answers with actions; ``policy``
holds the rules that are worth reading on their own (what ends a job, which
signals in which order, which exit code). Whoever wants to know why dispatch
did something reads this folder.
"""
