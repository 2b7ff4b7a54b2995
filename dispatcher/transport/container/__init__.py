"""Commands and agents in a container on each host: an engine's words around another transport's.

``engines``              the shell text for each engine (pure)
``container_transport``  puts it around each command

Never here: how a host is reached, and anything that runs inside the container.
"""
