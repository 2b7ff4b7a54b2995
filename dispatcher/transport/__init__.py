"""Ways of reaching a host, all with one contract: ``Transport.open`` gives a link or a failure.

``base`` is the contract; ``ssh`` is SSH in this process (with ``ssh_config`` and
``ssh_auth``), ``process`` any local program that gives a byte stream, ``pool`` connections
kept by a daemon, ``tree`` hosts reached through hosts. Every way passes the same tests.
Never here: decisions about retries, and the programs that run on the hosts.
"""
