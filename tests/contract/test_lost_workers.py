"""Credit workers that die, run out of memory or hang in the middle of a step: it then has the credit that the driver
alone gives it, and one warning says which worker was lost, at what, and why. Processes are killed, stopped and starved."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import ray
import torch
from ray import exceptions

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import worker_pool as workers_module
from rredcot_plugin.integrations.verl.credit_workers import CreditWorker, CreditWorkers
from rredcot_plugin.integrations.verl.worker_pool import WorkerHungError, WorkerLostError, WorkerPool
from tests.contract.test_credit_workers import assert_same, bare_rows, credit_of
from tests.contract.workers_cluster import cluster, lay_down, make_workers

__all__ = ["cluster"]

NEWLINES = {"segmenter": "newline", "credit_workers": 2}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def starve_torch() -> None:
    limit_memory()
    torch.zeros(1 << 34)


def starve_python() -> None:
    limit_memory()
    bytearray(1 << 36)


def limit_memory() -> None:
    """No more than this process has already."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now, now))


def throw(error: Exception) -> None:
    raise error


def sabotage(actor: Any, method: str, deed: Callable[[], None]) -> None:
    """Have a real actor do this in the middle of its next call of ``method``."""

    def spoil(member: Any) -> None:
        whole = getattr(member, method)

        def spoiled(*args: Any) -> Any:
            result = whole(*args)
            deed()
            return result

        setattr(member, method, spoiled)

    ray.get(actor.__ray_call__.remote(spoil))


def alive(pid: int) -> bool:
    """Whether the process exists, and is not only waited for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def pid_of(actor: Any) -> int:
    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))


@pytest.mark.parametrize(
    ("method", "deed", "said"),
    [
        ("state_numbers", kill, r"was lost in `state_numbers`: ActorDiedError: .*its worker process has died"),
        ("plan", stop, r"did not finish `plan` within 5 s"),
        ("state_numbers", starve_torch, r"was lost in `state_numbers`: MemoryError: .*can't allocate memory"),
        ("plan", starve_python, r"was lost in `plan`: MemoryError"),
        ("read", partial(throw, exceptions.OutOfMemoryError("the node is full")), r"`read`: .*the node is full"),
    ],
)
def test_a_lost_worker_costs_one_warning(
    cluster: None, method: str, deed: Callable[[], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    alone, shared = (make_workers({**NEWLINES, "credit_workers": workers}) for workers in (0, 2))
    first, second = bare_rows(seed=0), bare_rows(seed=1)
    assert_same(credit_of(shared, first), credit_of(alone, first))
    shared.pool._timeout_s = 5.0
    pids = [pid_of(actor) for actor in shared.pool.actors]
    sabotage(shared.pool.actors[1], method, deed)
    began = time.monotonic()
    assert_same(credit_of(shared, second), credit_of(alone, second))
    assert time.monotonic() - began < 300
    (record,) = [r for r in caplog.records if "credit_workers=2 failed" in r.message]
    assert re.search(rf"\(credit worker 2 of 2 {'' if 'did' in said else '.*'}{said}", record.message)
    assert ("credit_timeout_s" in record.message) == (deed is stop)
    assert ("set fewer algorithm.rredcot.credit_workers" in record.message) == (deed is not stop)
    assert not shared.processes
    assert_same(credit_of(shared, first), credit_of(alone, first))
    assert not shared.pool.actors, "it stays alone"
    while any(map(alive, pids)):
        assert time.monotonic() - began < 400, "no worker is left over, stopped ones neither"
        time.sleep(0.1)


class InThisProcess:
    """WorkerPool without Ray, one of which is lost at a method."""

    def __init__(self, credit_workers: CreditWorkers, lost_at: str) -> None:
        self.lost_at = lost_at
        make = partial(
            CreditWorker,
            [],
            credit_workers.config,
            credit_workers.table,
            credit_workers.encoder,
            delivers=credit_workers.delivers,
        )
        self.members = [make() for _ in range(2)]

    def ask(self, method: str, arguments: Any) -> list[Any]:
        found = [getattr(member, method)(*given) for member, given in zip(self.members, arguments, strict=True)]
        if method == self.lost_at:
            raise WorkerLostError(f"in `{method}`")
        return found

    def dismiss(self) -> None:
        self.members = []


@pytest.mark.parametrize("method", ["read", "plan", "state_numbers"])
def test_a_worker_may_be_lost_at_any_method(
    cluster: None, method: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, shared = (make_workers({**NEWLINES, "credit_workers": workers}) for workers in (0, 2))
    stand_in = InThisProcess(shared, method)
    monkeypatch.setattr(shared, "pool", stand_in)
    rows: PromptedRollouts = bare_rows()
    assert_same(credit_of(shared, rows), credit_of(alone, rows))
    assert caplog.text.count(f"credit_workers=2 failed (in `{method}`)") == 1
    assert not stand_in.members and not shared.processes


def test_a_hung_worker_is_named_before_the_driver_begins(
    cluster: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the case that the driver hangs in the same place."""
    shared = make_workers(NEWLINES)
    stand_in = InThisProcess(shared, "read")
    monkeypatch.setattr(shared, "pool", stand_in)
    monkeypatch.setattr(shared._here, "read", lambda rows: pytest.fail("hangs"))
    rows = bare_rows()
    with pytest.raises(pytest.fail.Exception, match="hangs"):
        shared.plan(lay_down(rows), rows.lengths)
    assert "credit_workers=2 failed (in `read`)" in caplog.text


# ---- the workers by themselves


def light_actor(**options: Any) -> Any:
    class Light:
        """Without torch, so that it starts fast."""

        def do(self, method: str, given: tuple[Any, ...]) -> Any:
            return getattr(self, method)(*given)

        def double(self, x: Any) -> Any:
            return x * 2

        def sleep(self, seconds: float) -> float:
            time.sleep(seconds)
            return seconds

        def throw(self, error: Exception | None) -> None:
            if error is not None:
                raise error

    return ray.remote(num_cpus=0)(Light).options(**options).remote()


@pytest.fixture(scope="module")
def light(cluster: None) -> Iterator[WorkerPool]:
    workers = WorkerPool(light_actor, 20.0)
    assert workers.ask("double", [(1,), ("a",)]) == [2, "aa"]
    yield workers
    workers.dismiss()


@pytest.mark.parametrize(
    "error",
    [
        exceptions.OutOfMemoryError("the node is full"),
        exceptions.ObjectStoreFullError("the store is full"),
        exceptions.OutOfDiskError("the disk is full"),
        exceptions.ObjectLostError("ab" * 28, b"", "here"),
        exceptions.ActorUnavailableError("no answer", b"a" * 16),
        exceptions.WorkerCrashedError(),
        MemoryError("no more"),
        ConnectionError("no way"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_worker_cannot_help(light: WorkerPool, error: Exception) -> None:
    name = type(error).__name__
    with pytest.raises(WorkerLostError, match=f"^credit worker 2 of 2 was lost in `throw`: {name}: "):
        light.ask("throw", [(None,), (error,)])


@pytest.mark.parametrize("error", [ValueError("wrong"), RuntimeError("wrong"), KeyError("wrong")], ids=str)
def test_what_a_part_raises_itself_stays_what_it_is(light: WorkerPool, error: Exception) -> None:
    with pytest.raises(type(error), match="wrong"):
        light.ask("throw", [(None,), (error,)])


def test_an_error_does_not_wait_for_a_worker_that_is_slow(light: WorkerPool) -> None:
    began = time.monotonic()
    slow = WorkerPool(light_actor, 400.0)
    with pytest.raises(ValueError, match="wrong"):
        slow.ask("do", [("sleep", (300.0,)), ("throw", (ValueError("wrong"),))])
    slow.dismiss()
    assert time.monotonic() - began < 200


def test_memory_that_torch_lacks_is_memory_that_is_lacking() -> None:
    class Greedy(CreditWorker):
        def __init__(self) -> None:
            """With nothing to work on."""

        def greedy(self, elements: int) -> float:
            return float(torch.empty(elements).numel())

        def wrong(self) -> None:
            raise RuntimeError("something else")

    assert Greedy().do("greedy", (3,)) == 3
    with pytest.raises(MemoryError, match="can't allocate memory"):
        Greedy().do("greedy", (1 << 50,))
    with pytest.raises(RuntimeError, match="something else"):
        Greedy().do("wrong", ())


def test_a_worker_that_does_not_start_is_named(cluster: None) -> None:
    workers = WorkerPool(partial(light_actor, resources={"what no node has": 1}), 1.0)
    with pytest.raises(WorkerHungError, match=r"^credit worker 1 of 1 did not start within 1 s$"):
        workers.ask("double", [(1,)])
    workers.dismiss()


def test_one_of_several_that_hangs_is_named(light: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light, "_timeout_s", 1.5)
    with pytest.raises(WorkerHungError, match=r"^credit worker 2 of 2 did not finish `sleep` within 1.5 s$"):
        light.ask("sleep", [(0.0,), (3.0,)])
    monkeypatch.undo()
    assert light.ask("double", [(1,), (2,)]) == [2, 4], "late answers are nobody's"


def test_a_part_that_ends_its_process_while_starting_says_why(cluster: None) -> None:
    class Broken:
        def __init__(self) -> None:
            raise KeyError("no such table")

        def do(self, method: str, given: tuple[Any, ...]) -> None:
            """Never reached."""

    workers = WorkerPool(lambda: ray.remote(num_cpus=0)(Broken).remote(), 20.0)
    with pytest.raises(
        WorkerLostError, match=r"worker 1 of 1 was lost in `double`: ActorDiedError: .*'no such table'"
    ):
        workers.ask("double", [(1,)])
    workers.dismiss()


def test_the_cause_is_short() -> None:
    cause = workers_module._cause(ValueError("first\n" + "middle\n" * 50 + "last " * 200))
    assert cause.startswith("ValueError: first last") and len(cause) <= workers_module.LONGEST_CAUSE
    assert workers_module._cause(ValueError("")) == "ValueError:"
