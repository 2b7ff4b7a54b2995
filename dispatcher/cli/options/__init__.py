"""Options that several commands share: how they are spelled, their defaults, what they mean.

``spelling`` has old names, ``option_defaults`` and the two ``config`` files dispatch.toml,
``mistakes`` lines that cannot be meant. Never here: what only one command does.
"""
