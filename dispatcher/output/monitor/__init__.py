"""What the ranks do now, and which of them is unlike the others."""
