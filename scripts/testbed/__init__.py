"""A cluster inside one machine: many hosts with real sshd, made for tests and measurements.

Two builds share one description (``layout``) and one set of commands (``commands``):

* ``netns``: each host is a set of Linux namespaces (net, mount, pid, uts, ipc) on a private
  bridge. Needs root, or a user namespace. Links can be cut and hosts can lose power.
* ``loopback``: each host is an unprivileged sshd on its own 127.0.0.x address. Needs nothing
  but OpenSSH. Hosts share the machine's name, files and processes.

Standard library only; knows nothing of dispatch.
"""
