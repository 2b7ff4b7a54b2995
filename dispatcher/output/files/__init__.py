"""What a run leaves on disk, written and read back."""
