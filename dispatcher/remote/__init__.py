"""All that travels: what runs on hosts, and what both ends speak.

Rule of this folder: the standard library alone, Python 3.8 or later, nothing imported from
outside. It is sent over the link at each run, so versions never differ; and since the
agent's start is on the way of every run, modules that cost milliseconds (``json``, ``re``,
``enum``, ``socket``, ``subprocess``) stay out where their builtin cores are enough.

``agent`` starts, watches and ends ranks; ``host`` and ``pmi`` are what it does that with;
``probe`` takes readings, ``copy`` sends and receives files, ``tree_relay`` passes on what is
for other hosts, ``rank`` is loaded into the ranks themselves. ``protocol`` is the format of
what crosses, and the one part that the launcher imports freely.
"""
