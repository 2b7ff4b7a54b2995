"""``python -m dispatcher`` is ``dispatch``."""

from dispatcher.cli import console

console()
