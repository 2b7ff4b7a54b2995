"""Faults at random instants of real runs, and hours of everything in turn; see ``__main__``."""
