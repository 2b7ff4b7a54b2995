"""A cluster inside one machine: many hosts with real sshd, made for tests and measurements.

Each host is a set of Linux namespaces (net, mount, pid, uts, ipc) on a private bridge. It needs
root, or a user namespace. Links can be cut and hosts can lose power.

Standard library only; knows nothing of dispatch.
"""
