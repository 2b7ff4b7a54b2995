"""Values that every room speaks: hosts, names, errors. Imports no other room;
no thread, clock or socket.
"""
