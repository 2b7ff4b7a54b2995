"""What will run where, decided before any host is touched.

Hostfile, filters and flags go in; one frozen ``JobPlan`` comes out. Everything
here is pure: the login node's environment and the texts are arguments. The one
edge is ``hostfile.read_hosts``, which opens the file that ``-H`` names.
"""
