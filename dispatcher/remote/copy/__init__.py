"""The part of the copy that travels: a host's end of ``put`` and ``get``, in Python.

Rule of this folder: standard library and ``dispatcher.remote.protocol.packing`` only, Python 3.8 or
later, and little of it, since it crosses to every host. The launcher's end uses the same
modules, so both ends of the wire are written once.
"""
