"""Collect concurrent requests into batches, with verl's pause and resume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

QUIET_SECONDS = 0.05  # a batch starts when no request has arrived for so long ...
PATIENCE_SECONDS = 1.0  # ... or when its first request has waited for so long


class Batcher:
    """Runs `generate` in a thread on batches of at most `max_batch` waiting requests, one batch at a time.

    A batch takes the waiting requests in sorted order, so that its make-up does not depend on who came first.
    `lock` is held while a batch runs: whoever else holds it has the model for itself.
    """

    def __init__(self, generate: Callable[[list[Any]], Sequence[Any]], max_batch: int) -> None:
        if max_batch < 1:
            raise ValueError(f"rollout.max_num_seqs={max_batch} must be at least 1")
        self.lock = asyncio.Lock()
        self._generate = generate
        self._max_batch = max_batch
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._aborting = False
        self._rejecting = False
        self._loop_task: asyncio.Task[None] | None = None

    async def submit(self, item: Any) -> Any:
        """The result of `item`, or None if it was aborted before it had started."""
        while not self._open.is_set():
            if self._rejecting:
                return None
            await self._open.wait()
        if self._loop_task is None:
            self._loop_task = asyncio.create_task(self._run_batches())
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._arrived.set()
        return await future

    def is_aborting(self) -> bool:
        return self._aborting

    async def abort(self, *, reject: bool) -> None:
        """Close the gate, end the running batch early and return the requests that have not started."""
        self._open.clear()
        self._rejecting = reject
        self._aborting = True
        for _, future in self._waiting:
            future.set_result(None)
        self._waiting.clear()
        async with self.lock:
            self._aborting = False

    def resume(self) -> None:
        self._rejecting = False
        self._open.set()

    async def _run_batches(self) -> None:
        while True:
            await self._wait_for_batch()
            async with self.lock:
                await self._run_one()

    async def _wait_for_batch(self) -> None:
        self._arrived.clear()
        while not self._waiting:
            await self._arrived.wait()
            self._arrived.clear()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while len(self._waiting) < self._max_batch and loop.time() < deadline:
            try:
                await asyncio.wait_for(self._arrived.wait(), timeout=QUIET_SECONDS)
            except TimeoutError:
                return
            self._arrived.clear()

    async def _run_one(self) -> None:
        self._waiting.sort(key=lambda entry: repr(entry[0]))
        batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
        if not batch:  # aborted while waiting for the lock
            return
        try:
            results = await asyncio.to_thread(self._generate, [item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  every requester gets it; the next batch may fare better
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)
