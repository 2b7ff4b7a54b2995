"""Every event and every action as a frozen value, the verdict, and what a sink is.

The vocabulary of core, runner and output; outside the runner only this part of core is
imported. Never here: what follows from an event.
"""
