"""Policies small enough to enumerate, for evidence without sampling noise."""
