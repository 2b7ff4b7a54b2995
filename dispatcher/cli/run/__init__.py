"""``dispatch run``: from options to plan, sinks, run and exit code; ``launch`` is the way through.

Never here: the run itself, which programs can start too (``api.run_session``).
"""
