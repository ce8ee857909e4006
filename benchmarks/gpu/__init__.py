"""The GPU benchmark of the probes: `run.py`."""
