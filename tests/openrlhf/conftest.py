"""These tests run in the environment of ``make env-openrlhf``, which has OpenRLHF and no verl."""

from rredcot_plugin.commands.checks import is_installed

collect_ignore_glob = [] if is_installed("openrlhf") else ["[!c]*.py"]
