"""A run's trace read back and drawn: ``reading`` → ``phases`` → ``page``.

Pure: text in, a page out. What writes the trace is ``dispatcher.output.files.trace``.
"""
