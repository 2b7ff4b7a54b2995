"""Hosts: hostfiles of every dialect, ranges, filters, and what a batch system has given us.

Never here: ranks (``plan.job``), or whether a host can be reached.
"""
