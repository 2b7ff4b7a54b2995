"""How our code gets onto a host that has none of it: packed, started,
its first words told from noise.
"""
