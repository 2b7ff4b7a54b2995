"""The screen: lines with labels, the footer, the full-screen table, and who may write when.

Never here: what the lines say (``output.text``).
"""
