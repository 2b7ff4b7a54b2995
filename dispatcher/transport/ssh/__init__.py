"""SSH inside this process, by paramiko."""
