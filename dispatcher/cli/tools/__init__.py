"""Commands that touch no host."""
