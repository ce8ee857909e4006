"""These tests run in the environment of ``make env-openrlhf``, which has OpenRLHF and no verl."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("openrlhf") else ["[!c]*.py"]
