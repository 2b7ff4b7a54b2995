"""A fan-out command or a copy, in words."""
