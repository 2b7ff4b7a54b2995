"""A host's end of ``put`` and ``get``, in Python; the launcher's end uses the same modules.

Never here: sh for hosts without Python (``bootstrap.shell``), or who gets what
(``transfer``).
"""
