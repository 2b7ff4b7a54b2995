"""The host as its kernel shows it: processes, facts, folders, shared memory."""
