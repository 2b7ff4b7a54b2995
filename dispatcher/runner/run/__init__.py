"""The loop of a run."""
