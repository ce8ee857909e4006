"""Code that a model wrote runs without reach: no files, network, processes or secrets of the trainer.

``run_tests`` gives the verdict for a reward, ``run_code`` runs a program and returns what it wrote. Where the
machine has no strong isolation both raise ``SandboxUnavailable``; ``docs/guides/sandbox.md`` says what holds what back.
"""

from rredcot_plugin.sandbox.isolation import Availability, SandboxUnavailable, available
from rredcot_plugin.sandbox.limits import Limits
from rredcot_plugin.sandbox.process import Result, SandboxFailed
from rredcot_plugin.sandbox.run import TestResult, run_code, run_tests

__all__ = [
    "Availability",
    "Limits",
    "Result",
    "SandboxFailed",
    "SandboxUnavailable",
    "TestResult",
    "available",
    "run_code",
    "run_tests",
]
