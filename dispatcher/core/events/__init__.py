"""Every event and every action as a frozen value, the verdict, and the base class of sinks.

The vocabulary of core, runner and output; outside the runner only this part of core is
imported. Never here: decisions on an event.
"""
