"""The screen: lines with labels, the footer, the full-screen table, questions.

Never here: the words of these lines (``output.text``).
"""
