"""Commands that run once on every host: exec, shell, connect, put, get."""
