"""A cluster that is simulated: the true launcher, scripted hosts, virtual time.

* ``model``: what hosts and links take, as numbers that were measured, and how hosts differ.
* ``world``: virtual time, and the launcher's own parts put into it without threads.
* ``ways``: how hosts are reached: each from here, or through others.
* ``hosts``: agents that answer orders as the model and the script say; links to them.
* ``cases``: the runs that are simulated, and what is measured of each.

True are the plan, the core's machines, the run loop with its actions, a host's turn with its
intake and quotas, orders, the sinks (journal, merged log, screen, progress, report). Scripted are
logins, agents and ranks. Left out is what SSH itself costs: the model has it as a number, which
delays what it would delay.
"""
