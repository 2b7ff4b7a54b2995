"""What will run where, decided before any host is touched.

Hostfile, filters and options go in; one frozen ``JobPlan`` comes out, or a plan for a
fan-out command. All of it is pure, but ``hosts`` reads the file that ``-H`` names. Never
here: what happens once the run has begun.
"""
