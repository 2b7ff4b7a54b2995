"""``dispatch run``."""
