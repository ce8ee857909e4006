"""Bad numbers and shapes stop at the border: ``ValueError`` says what was expected and what came."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.registry import SHAPERS
from rredcot_plugin.values.base import Probed
from rredcot_plugin.values.proposals import build_proposals

NAN, INF = float("nan"), float("inf")
B, T, S, N = 2, 6, 3, 2
TWO_TOKENS = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 2}}


def rollouts(**changes: object) -> rr.Rollouts:
    """Two responses; token 4 of the first is masked."""
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[0, 4] = False
    given: dict = {
        "token_ids": torch.zeros(B, T, dtype=torch.int64),
        "response_mask": mask,
        "rewards": torch.zeros(B, T),
        "group_ids": ["a", "a"],
    }
    return rr.Rollouts(**(given | changes))


def probed(**changes: torch.Tensor) -> Probed:
    given = {
        "log_pi": torch.full((B, S, N), -1.0),
        "utility": torch.ones(B, N),
        "valid": torch.ones(B, N, dtype=torch.bool),
        "num_segments": torch.tensor([S, S]),
    }
    return Probed(**(given | changes))


def credit(**arguments: object) -> rr.Credit:
    return rr.assign_credit(rollouts(), rr.RRedCoTConfig(**TWO_TOKENS, calibrate="none"), **arguments)


def with_one(shape: tuple[int, ...], fill: float, bad: float) -> torch.Tensor:
    """A tensor of ``fill`` whose first entry is ``bad``."""
    tensor = torch.full(shape, fill)
    tensor.view(-1)[0] = bad
    return tensor


def refuses(call: Callable[[], object], *parts: str) -> None:
    """The message holds every one of these texts."""
    with pytest.raises(ValueError, match=re.escape(parts[0])) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_good_input_passes() -> None:
    assert torch.isfinite(credit(probed=probed(), values=None).advantages).all()


# ---- numbers that are not finite


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["log_probs", "entropies"])
def test_signals(name: str, bad: float) -> None:
    refuses(lambda: rollouts(**{name: with_one((B, T), -0.5, bad)}), name, "expected finite numbers", "got 1")


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_values(bad: float) -> None:
    refuses(lambda: credit(values=with_one((B, S), 0.5, bad)), "values", "expected finite numbers", "got 1")


@pytest.mark.parametrize("bad", [NAN, INF, 0.5])
def test_log_probs_of_proposals(bad: float) -> None:
    broken = with_one((B, S, N), -1.0, bad)
    refuses(lambda: credit(probed=probed(log_pi=broken)), "log_pi", "expected log-probs up to 0", "got 1")
    unused = torch.tensor([[False, True], [True, True]])
    assert torch.isfinite(credit(probed=probed(log_pi=broken, valid=unused)).advantages).all()


def test_an_impossible_proposal_is_no_error() -> None:
    never = with_one((B, S, N), -1.0, -INF)
    assert torch.isfinite(credit(probed=probed(log_pi=never)).advantages).all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_utilities(bad: float) -> None:
    broken = with_one((B, N), 1.0, bad)
    refuses(lambda: credit(probed=probed(utility=broken)), "utility", "expected finite numbers", "got 1")


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_a_shaper_returns(bad: float) -> None:
    class Broken:
        def __call__(self, deltas: torch.Tensor, *_: object) -> torch.Tensor:
            return with_one(tuple(deltas.shape), 0.0, bad)

    SHAPERS.register("not_finite_for_test", overwrite=True)(Broken)
    config = rr.RRedCoTConfig(**TWO_TOKENS, shapers=("not_finite_for_test",))
    refuses(lambda: rr.assign_credit(rollouts(), config), "Broken", "expected finite numbers", "got 1")


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_rewards_are_the_exception_for_training_goes_on(bad: float) -> None:
    found = rr.assign_credit(rollouts(rewards=with_one((B, T), 0.0, bad)), rr.RRedCoTConfig(**TWO_TOKENS))
    assert torch.isfinite(found.advantages).all()
    assert found.metrics["rredcot/fallback/nonfinite_reward/mean"] == 0.5


# ---- shapes


@pytest.mark.parametrize(
    ("name", "broken", "expected", "got"),
    [
        ("utility", torch.ones(B, N + 1), (B, N), (B, N + 1)),
        ("utility", torch.ones(B + 1, N), (B, N), (B + 1, N)),
        ("valid", torch.ones(B, N + 1, dtype=torch.bool), (B, N), (B, N + 1)),
        ("log_pi", torch.zeros(B, S + 1, N), (B, S, N), (B, S + 1, N)),
        ("log_pi", torch.zeros(B + 1, S, N), (B, S, N), (B + 1, S, N)),
        ("log_pi", torch.zeros(B, S), (B, S, S), (B, S)),
    ],
)
def test_shapes_of_probes(name: str, broken: torch.Tensor, expected: tuple, got: tuple) -> None:
    refuses(lambda: credit(probed=probed(**{name: broken})), name, f"expected shape {expected}, got {got}")


@pytest.mark.parametrize("shape", [(B, S - 1), (B, S + 1), (B + 1, S)])
def test_shapes_of_values(shape: tuple[int, int]) -> None:
    refuses(lambda: credit(values=torch.zeros(shape)), "values", f"expected shape {(B, S)}, got {shape}")


@pytest.mark.parametrize("name", ["response_mask", "rewards", "log_probs", "entropies"])
def test_shapes_of_rollouts(name: str) -> None:
    refuses(
        lambda: rollouts(**{name: torch.zeros(B, T + 1)}), f"{name}: expected shape {(B, T)}, got {(B, T + 1)}"
    )


def test_shapes_of_redistribution() -> None:
    deltas, two = torch.zeros(B, S), torch.tensor([S, S])
    refuses(lambda: rr.redistribute(deltas, torch.zeros(3), two), "outcome: expected shape (2,), got (3,)")
    refuses(lambda: rr.segment_gae(deltas, two[:1], 1.0), "num_segments: expected shape (2,), got (1,)")
    refuses(lambda: rr.spread_to_tokens(deltas, torch.zeros(3, T).long()), "expected shape (2, 6), got (3, 6)")


# ---- partitions


@pytest.mark.parametrize(
    ("ids", "count", "message"),
    [
        ([0, 0, 1, 0, 1, 1], 2, "never decrease"),
        ([1, 1, 0, 0, 0, 0], 2, "never decrease"),
        ([0, 0, 2, 2, 2, 2], 3, "without tokens"),
        ([1, 1, 1, 1, 1, 1], 2, "without tokens"),
        ([0, -1, 1, -1, 0, -1], 2, "never decrease"),
        ([0, 0, 1, 1, 1, 1], 3, "expected the last id + 1 = [2], got [3]"),
        ([-1] * 6, 1, "expected the last id + 1 = [0], got [1]"),
    ],
    ids=["overlap", "reversed", "gap", "none first", "overlap across masked", "too many counted", "empty counted"],
)
def test_segments_out_of_order(ids: list[int], count: int, message: str) -> None:
    refuses(lambda: rr.Segments(torch.tensor([ids]), torch.tensor([count])), message)


def cut(first: list[int], second: list[int]) -> rr.Segments:
    ids = torch.tensor([first, second])
    return rr.Segments(ids, ids.amax(dim=1) + 1)


WHOLE = [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [
        ([0, 0, 0, 1, -1, -1], WHOLE, ("rollout 0", "1 unmasked tokens without", "0 masked tokens with")),
        ([0, 0, 0, 1, 1, 1], WHOLE, ("rollout 0", "0 unmasked tokens without", "1 masked tokens with")),
        ([0, 0, 0, 1, -1, 1], [-1, 0, 0, 1, -1, 1], ("rollout 1", "2 unmasked tokens without")),
    ],
    ids=["unmasked left out", "masked covered", "second row"],
)
def test_segments_must_cover_the_unmasked_tokens(first: list[int], second: list[int], wrong: tuple) -> None:
    segments = cut(first, second)
    refuses(lambda: credit(segments=segments), "expected every unmasked token in one segment", *wrong)
    refuses(lambda: credit(segments=segments, values=torch.zeros(B, 2)), "expected every unmasked token")


def test_a_segmenter_of_ones_own_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = cut([0, 0, 0, 1, -1, -1], WHOLE)
    monkeypatch.setattr(rr.RRedCoTConfig, "build_segmenter", lambda self: lambda rollouts: broken)
    refuses(credit, "rollout 0", "1 unmasked tokens without")


def test_segments_of_another_batch() -> None:
    narrow = rr.Segments(torch.zeros(B, T - 1, dtype=torch.int64), torch.ones(B, dtype=torch.int64))
    refuses(lambda: credit(segments=narrow), f"expected shape {(B, T)}, got {(B, T - 1)}")


# ---- λ


@pytest.mark.parametrize("lam", [-0.1, -1, 1.01, NAN, INF])
def test_lambda_outside_zero_to_one(lam: float) -> None:
    refuses(lambda: rr.RRedCoTConfig(lam=lam), f"lam={lam!r}", "from 0 to 1")
    refuses(lambda: rr.segment_gae(torch.zeros(1, 2), torch.tensor([2]), lam), f"lam={lam!r}", "from 0 to 1")


@pytest.mark.parametrize("lam", ["1", None, True])
def test_lambda_that_is_no_number(lam: object) -> None:
    refuses(lambda: rr.RRedCoTConfig(lam=lam), f"lam={lam!r}", "from 0 to 1")


def test_counts_of_segments() -> None:
    for count in (4, -1):
        counts = torch.tensor([count, 1])
        refuses(
            lambda counts=counts: rr.redistribute(torch.zeros(2, 3), torch.zeros(2), counts),
            "from 0 to 3",
            str(count),
        )
        refuses(lambda counts=counts: rr.segment_gae(torch.zeros(2, 3), counts, 1.0), "from 0 to 3", str(count))
    for wrong in ([7, 7], [1, 1], [S]):
        refuses(
            lambda wrong=wrong: credit(probed=probed(num_segments=torch.tensor(wrong))),
            "probed.num_segments",
            str(wrong),
        )


def test_proposals_fit_the_rollouts() -> None:
    refuses(
        lambda: build_proposals(["4"], torch.zeros(2), ["a", "a"], None, proposes="group"), "answers", "2", "1"
    )


@pytest.mark.parametrize(
    ("truth", "proposed"),
    [("4", 1), (4, 1), (np.float64(4), 1), ({"tests": ["f()"]}, 0), (["4"], 0), (" ", 0), (None, 0)],
)
def test_a_ground_truth_that_is_no_answer_is_not_proposed(truth: object, proposed: int) -> None:
    found = build_proposals([None], torch.zeros(1), ["a"], [truth], proposes="ground_truth")
    assert int(found.valid.sum()) == proposed


@pytest.mark.parametrize("name", ["critic", "environment", "monte_carlo", "reward_model"])
def test_responses_without_a_token_have_no_credit(name: str) -> None:
    none = torch.zeros(3, 0)
    empty = rr.Rollouts(none.long(), none.bool(), none, ["a", "a", "b"], token_scores={name: none})
    credit = rr.assign_credit(empty, rr.RRedCoTConfig(**TWO_TOKENS, value_estimator=name))
    assert credit.advantages.shape == (3, 0) and not credit.values.any()


@pytest.mark.parametrize("shaper", SHAPERS.names())
def test_shapers_take_a_batch_without_rows(shaper: str) -> None:
    none = torch.zeros(0, 5)
    credit = rr.assign_credit(
        rr.Rollouts(none.long(), none.bool(), none, []), rr.RRedCoTConfig(**TWO_TOKENS, shapers=[shaper])
    )
    assert credit.advantages.shape == (0, 5)
