"""The host's side of PMI-1 and PMIx; most of it is loaded when a rank asks for the first time."""
