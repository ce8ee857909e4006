"""Checks of the quick gate, each against committed results; see ``quick.py``."""
