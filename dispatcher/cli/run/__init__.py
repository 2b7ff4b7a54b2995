"""``dispatch run``: from options to plan, sinks, run and exit code; ``launch`` has all steps.

Never here: the run itself, which programs can start too (``api.run_session``).
"""
