"""Words and lines; pure."""
