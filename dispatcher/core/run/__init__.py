"""A run as machines over events: attempts, tables, policy."""
