"""Hydra configuration groups, found by ``hydra.searchpath=[pkg://rredcot_plugin.conf]``."""
