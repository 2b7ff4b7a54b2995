"""The loop of a fan-out command."""
