"""A rehearsal on a real GPU; see ``__main__``."""
