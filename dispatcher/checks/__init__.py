"""Is the cluster fit for a job? Judgements on what hosts are and have; pure.

Theory. A check is two halves that never meet: *reading*, which happens on the
host (``remote/probe/survey`` and ``senses``: files, commands with deadlines, bounded
bytes, no opinion), and *judging*, which happens here, from those texts alone.
So every judgement is tested from recorded samples, and a host needs neither our
thresholds nor our version of them. What could not be read is INCOMPLETE, never OK.

``finding`` and ``seen`` have the vocabulary, ``catalog`` lists all checks and what must
be read for them, ``ruling`` puts the findings together. ``ports`` and ``netdevs`` read
network devices from what the kernel and the usual tools print; ``nccl_rules`` says what
NCCL does with them and ``nccl_advice`` what it should be told.
"""
