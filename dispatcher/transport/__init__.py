"""Ways of reaching a host: one file each, all passing one contract suite."""
