"""The part of dispatch that travels: it runs on every host and starts the ranks.

Everything in this folder is sent over the link at each run (so versions never
differ) and must run on Python 3.8 with nothing but the standard library. It
imports nothing outside this folder, and few modules at all: the start of the
agent is on the path of every run, so modules that cost milliseconds
(``json``, ``re``, ``enum``, ``socket``, ``subprocess``) stay out, and their
builtin cores (``_socket``, ``_signal``) are used where those are enough.

Who calls whom: ``main`` sets up file descriptors and runs ``loop``; ``loop``
does I/O and asks ``node`` (pure) what to do; ``node`` speaks in the actions
that ``loop`` carries out with ``process`` (one rank), ``family`` (all
descendants) and ``facts`` (what this host has). ``wire`` and ``pack`` are the
format of the link, shared with the launcher.
"""
