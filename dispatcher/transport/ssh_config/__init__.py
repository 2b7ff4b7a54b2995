"""What the user's ``ssh_config`` says of a host."""
