"""Bytes that nobody foresaw: what every parser makes of them, and of an agent that lies.

``judging`` says what a finding is; ``texts`` and ``streams`` have the targets, by what they
read; ``lying`` an agent that speaks the protocol and lies. ``scripts/fuzz`` looks for new
findings; the tests here replay those that were made.
"""
