"""Words and lines: the verdict, stacks, failures, numbers with units; pure.

Text goes in or comes out, and nothing is written here.
"""
