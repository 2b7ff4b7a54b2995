"""Options that several commands share: their declarations, spelling and defaults.

Never here: an option of one command.
"""
