"""Bytes that a step moves through TransferQueue, field by field as verl 0.9.1 and rredcot write and read them.

Token ids, masks and probes are int64, log-probs, entropies, rewards and advantages float32. A worker that is handed
keys without a list of fields reads every field that its rows have by then. Left out: texts and other columns of the
data set, keys and tags, the protocol's own bytes. With tensor parallelism of the actor each row is read more than once.
"""

from __future__ import annotations

from dataclasses import dataclass

from rredcot_plugin.planning.setup import Setup

INT, FLOAT = 8, 4

PICKLED_ID = 3
"""Bytes of a token id in a pickled list of Python integers: 2 below 256, 3 below 65,536, 5 above."""

DRIVER, PROCESSES, WORKERS, ROLLOUT = "driver", "processes", "workers", "rollout"
"""``processes``: those beside the driver that share its part of a big step."""


@dataclass(frozen=True)
class Transfer:
    """``bytes`` of all rows of a step, ``way`` "read by" or "written by" ``who``; ``ours``: by rredcot, not by verl."""

    what: str
    who: str
    way: str
    bytes: float
    ours: bool
    via: str = "TransferQueue"


def transfers(setup: Setup) -> list[Transfer]:
    """Everything of a step, verl's own part first."""
    found = _verl(setup)
    if setup.estimator == "none":
        return found
    found += _reads(setup)
    if setup.estimator == "monte_carlo":
        return found + _monte_carlo(setup)
    return found + (_batched(setup) if setup.backend == "batched" else _in_pass(setup))


def _rows(setup: Setup, what: str, who: str, way: str, a_row: float, ours: bool = True) -> Transfer:
    return Transfer(what, who, way, setup.traces * a_row, ours)


def sampled_row(prompt: int, response: int) -> int:
    """Bytes of a row as the agent loop writes it: ids, positions, masks; log-probs and reward a token.

    >>> sampled_row(1, 2)  # 8 (1 + 2) + 8 (2 + 2) + 16 · 3 + 4 (2 + 2)
    120
    """
    n = prompt + response
    return INT * n + INT * 2 * response + 2 * INT * n + FLOAT * 2 * response


def _verl(setup: Setup) -> list[Transfer]:
    P, T = setup.prompt_length, setup.response_length
    n, sampled = P + T, sampled_row(P, T)
    after = FLOAT * (n + 4 * T)  # log_probs; old_log_probs, entropy, advantages, returns
    return [
        _rows(setup, "rollouts", ROLLOUT, "written by", sampled, False),
        _rows(setup, "rows for the log-prob pass", WORKERS, "read by", sampled, False),
        _rows(setup, "log-probs, entropies", WORKERS, "written by", 2 * FLOAT * n, False),
        _rows(setup, "log-probs, entropies, masks, ids", DRIVER, "read by", 2 * FLOAT * n + 2 * INT * T + FLOAT * T, False),
        _rows(setup, "log-probs, entropies of responses", DRIVER, "written by", 2 * FLOAT * T, False),
        _rows(setup, "masks, rewards, log-probs", DRIVER, "read by", INT * T + 3 * FLOAT * T, False),
        _rows(setup, "advantages, returns", DRIVER, "written by", 2 * FLOAT * T, False),
        _rows(setup, "rows for the update", WORKERS, "read by", sampled + after, False),
        _rows(setup, "rows for metrics", DRIVER, "read by", INT * n + INT * T + 3 * FLOAT * T, False),
    ]  # fmt: skip


def read_row(prompt: int, response: int) -> int:
    """Bytes of a row that credit is computed from: ids, mask, rewards, the rollout engine's log-probs."""
    return INT * (prompt + response) + INT * response + 2 * FLOAT * response


def _reads(setup: Setup) -> list[Transfer]:
    """With processes beside the driver no token comes to it, unless probes are rows of their own, which it makes."""
    P, T = setup.prompt_length, setup.response_length
    readers = [PROCESSES] if setup.is_shared else []
    if not setup.is_shared or setup.backend == "batched":
        readers.append(DRIVER)
    return [
        transfer
        for who in readers
        for transfer in (
            _rows(setup, "rows: ids, masks, rewards", who, "read by", read_row(P, T)),
            _rows(setup, "the actor's log-probs, entropies", who, "read by", 2 * FLOAT * T),
        )
    ]


def probe_vector(probes: int, probe_tokens: int) -> int:
    """Bytes of a row's probes on their way there: a count, three numbers a probe, its ids, all int64.

    >>> probe_vector(2, 5)
    136
    """
    return INT * (1 + probes * (3 + probe_tokens))


def _in_pass(setup: Setup) -> list[Transfer]:
    there = probe_vector(setup.probes_a_trace, setup.probe_tokens)
    back = FLOAT * (1 + setup.probes_a_trace)
    return [
        _rows(setup, "probes", PROCESSES if setup.is_shared else DRIVER, "written by", there),
        _rows(setup, "probes, with rows of the log-prob pass", WORKERS, "read by", there),
        _rows(setup, "answers of probes", WORKERS, "written by", back),
        _rows(setup, "answers of probes", DRIVER, "read by", back),
        _rows(setup, "probes, answers: with rows of the update", WORKERS, "read by", there + back),
    ]


def _batched(setup: Setup) -> list[Transfer]:
    """A row a probe: three fields of b + A int64 (ids, positions, prompt and answer), two masks of A; log-probs back."""
    prefixes = setup.states * (setup.prompt_length + setup.response_length / 2)
    tokens = setup.proposals * (prefixes + setup.states * setup.probe_tokens)
    there = INT * (3 * tokens + 2 * setup.probes_a_trace * setup.probe_tokens)
    return [
        _rows(setup, "probes as rows", DRIVER, "written by", there),
        _rows(setup, "probes as rows", WORKERS, "read by", there),
        _rows(setup, "their log-probs", WORKERS, "written by", FLOAT * tokens),
        _rows(setup, "their log-probs", DRIVER, "read by", FLOAT * tokens),
    ]


def _monte_carlo(setup: Setup) -> list[Transfer]:
    """Requests to the rollout server and rewards of what comes back, through Ray; the rows are read once more."""
    P, T, n = setup.prompt_length, setup.response_length, setup.prompt_length + setup.response_length
    count = setup.states * setup.samples
    prefixes, rest = count * (P + T / 2), count * T / 2
    found = [
        ("prefixes to the rollout server", "written by", PICKLED_ID * prefixes),
        ("continuations", "read by", PICKLED_ID * rest),
        ("continued traces to the reward workers", "written by", 4 * INT * count * n),
    ]
    again = _rows(setup, "rows again", DRIVER, "read by", read_row(P, T))
    return [again, *(Transfer(what, DRIVER, way, setup.traces * size, True, "Ray") for what, way, size in found)]
