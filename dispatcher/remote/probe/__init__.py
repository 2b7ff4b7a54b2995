"""Readings of a host: for checks, and while ranks run."""
