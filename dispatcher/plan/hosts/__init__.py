"""Hosts: hostfiles of every dialect, ranges, filters, and the batch system's hosts.

Never here: ranks (``plan.job``), or whether a host can be reached.
"""
