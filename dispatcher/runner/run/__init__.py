"""A run carried out: its loop, the thread of each host, orders to agents, what they report.

Never here: when ranks are ended or started again (``core.run``).
"""
