"""Decides which ranks run on which hosts, before any host is touched.

Hostfile, filters and options go in; one frozen ``JobPlan`` comes out, or a plan for a
fan-out command. All of it is pure, but ``hosts`` reads the file that ``-H`` names. Never
here: events of a run that has begun.
"""
