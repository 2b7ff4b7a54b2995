"""``dispatch check`` and what it shows."""
