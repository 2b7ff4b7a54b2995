"""Tests of the ways to reach a host, against a real sshd on a loopback address."""
