"""Words and lines: the verdict, stacks, failures, numbers with units.

Never here: writing. Text is returned, and others write it.
"""
