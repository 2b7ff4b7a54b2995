"""dispatch for programs: what ``import dispatcher`` gives, and what the command line is built on.

``asking`` and ``reach`` say what is wanted, ``running`` starts it, ``course`` carries it out,
``report`` tells how it ended. The commands of ``cli`` take the same course with their own
sinks; nothing here knows of them.
"""
