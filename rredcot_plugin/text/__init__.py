"""Tokens and characters, where answers are, and how to ask for one earlier."""
