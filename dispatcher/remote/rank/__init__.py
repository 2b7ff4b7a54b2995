"""Modules that a rank's own process loads, and the program of ranks that measure pairs.

The folder is on the path of ranks: no module here may have a name of the standard library.
Never here: modules that a script imports by itself (``comm``).
"""
