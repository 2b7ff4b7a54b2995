"""Makes texts and lines: the verdict, stacks, failures, numbers with units.

Never here: writing; the callers write the text.
"""
