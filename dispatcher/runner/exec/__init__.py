"""A fan-out command carried out: its loop, the thread of each host, standard input and prompts.

Never here: when a host is given up, or how its lines are shown.
"""
