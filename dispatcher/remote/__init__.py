"""The code that dispatch sends to hosts, and the formats of both ends of the link.

Rule of this folder: the standard library alone, Python 3.8 or later, nothing imported from outside.
Each run sends it over the link. The agent's start is on the way of every run, so modules that
cost milliseconds (``json``, ``re``, ``enum``, ``socket``, ``subprocess``) stay out.
Never here: anything that only the launcher needs. It imports ``protocol`` freely.
"""
