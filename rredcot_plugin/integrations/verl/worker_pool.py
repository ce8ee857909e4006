"""Ray actors that work on the parts of a step, and what becomes of one that dies, runs out of memory or hangs.

What a part raises itself, a user's segmenter for instance, is raised as it is. Everything that an actor cannot help is
a ``WorkerLostError``, which names the worker, what it was doing, and the cause.
"""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray import exceptions

from rredcot_plugin.adapter.parcel import parcel, unparcel

LOST = (
    exceptions.RayActorError,
    exceptions.ActorUnschedulableError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.RuntimeEnvSetupError,
    exceptions.OutOfMemoryError,
    exceptions.OutOfDiskError,
    exceptions.ObjectStoreFullError,
    exceptions.ObjectLostError,
    exceptions.RpcError,
    exceptions.RaySystemError,
    MemoryError,
    ConnectionError,
)
"""What Ray raises for an actor, its process or its results that are gone, and what a part raises where memory or the
way to its rows is missing: none of Ray's is what a part raised, which is a ``RayTaskError`` of its cause's class."""

LONGEST_CAUSE = 400


class WorkerLostError(Exception):
    """A worker is gone; whoever asked it can do the work itself."""

    way_out = "If it ran out of memory, set fewer algorithm.rredcot.credit_workers"


class WorkerHungError(WorkerLostError):
    """A worker did not answer in time."""

    way_out = (
        "If it only needed longer, raise algorithm.rredcot.credit_timeout_s; if the run hangs from here on, "
        "the driver cannot finish the work either"
    )


class WorkerPool:
    """Ray actors of the same kind, started by ``start`` when they are first needed.

    Their method ``do`` takes the name of a method and its arguments, and gives its result, both as parcels.
    """

    def __init__(self, start: Callable[[], Any], timeout_s: float) -> None:
        self.actors: list[Any] = []
        self._start, self._timeout_s = start, timeout_s
        self._started: list[Any] = []

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The method's result of every part, each from an actor.

        Raises:
            WorkerHungError: one of them has not answered after ``timeout_s`` seconds.
            WorkerLostError: one of them is gone, or lacks memory or the way to its rows.
            Exception: what a part raises itself.
        """
        deadline = time.monotonic() + self._timeout_s
        of = len(arguments)
        numbers: dict[Any, int] = {}
        for number, given in enumerate(map(parcel, arguments)):
            with _named(number, of, method):
                numbers[self._actor(number).do.remote(method, given)] = number
        found: list[Any] = [None] * of
        pending = list(numbers)
        while pending:
            ready, pending = ray.wait(pending, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._hang(numbers[pending[0]], of, method)
            for answer in ready:
                number = numbers[answer]
                with _named(number, of, method):
                    found[number] = ray.get(answer)
        return [unparcel(each) for each in found]

    def dismiss(self) -> None:
        """End all of them, whatever they are doing."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors, self._started = [], []

    def _actor(self, number: int) -> Any:
        if number == len(self.actors):
            self.actors.append(self._start())
            self._started.append(self.actors[-1].__ray_ready__.remote())
        return self.actors[number]

    def _hang(self, number: int, of: int, method: str) -> None:
        started, _ = ray.wait([self._started[number]], timeout=0)
        what = f"finish `{method}`" if started else "start"
        raise WorkerHungError(f"credit worker {number + 1} of {of} did not {what} within {self._timeout_s:g} s")


@contextlib.contextmanager
def _named(number: int, of: int, method: str) -> Iterator[None]:
    """What is raised in here for a worker that is gone says which one, and what it was doing."""
    try:
        yield
    except LOST as error:
        raise WorkerLostError(
            f"credit worker {number + 1} of {of} was lost in `{method}`: {_cause(error)}"
        ) from error


def _cause(error: Exception) -> str:
    """The first line of an error and its last, which is where Ray says why."""
    original = getattr(error, "cause", None) or error
    lines = [line for line in str(original).splitlines() if line.strip()] or [""]
    text = " ".join(dict.fromkeys((lines[0], lines[-1])))
    return textwrap.shorten(f"{type(original).__name__}: {text}", LONGEST_CAUSE, placeholder=" …")
