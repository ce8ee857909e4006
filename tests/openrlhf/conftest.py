"""These tests run in the environment of ``make env-openrlhf``, which has OpenRLHF and no verl."""

from rredcot_plugin.installed import installed_version

collect_ignore_glob = [] if installed_version("openrlhf") else ["[!c]*.py"]
