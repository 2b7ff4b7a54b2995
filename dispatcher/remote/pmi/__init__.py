"""The host's side of PMI-1 and PMIx; most of it is loaded when a rank asks for the first time.

Never here: fences over several hosts, which the launcher's core decides.
"""
