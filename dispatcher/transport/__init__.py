"""Ways of reaching a host: one file each, all passing one contract suite.

::

    base                   the contract: Transport.open -> Link | Failure
    local command openssh  a local child each           child, pump
    paramiko_              SSH in this process          session, paramiko_link, wire, dial
      where and as whom    ssh_config -> host_config    config_*, patterns, host_names
      whom we trust        host_keys                    known_hosts, host_certificate, key_blobs
      how we log in        identities                   ssh_agent
      with what            algorithms

paramiko itself is imported by the first connection or by ``paramiko_.preload``.
"""
