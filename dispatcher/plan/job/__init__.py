"""From a request and its hosts to the frozen plan of a job: ranks, devices, environments.

Never here: reading files, or the addresses that only hosts know.
"""
