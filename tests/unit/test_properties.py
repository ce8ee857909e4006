"""What must hold for any batch, whatever is configured (docs/reference/math.md).

Every shipped segmenter with every shaper: the redistributed rewards of a trace sum to its outcome, masked tokens
get exactly 0, the order of the rows does not matter, and neither does where a response stands in its row.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.values.base import Probed

CHECK = settings(deadline=None, derandomize=True, max_examples=100)
PIECES = (
    "a",
    "So b. ",
    "Wait, ",
    "\n",
    "\n\n",
    "1 + 2",
    "é",
    "。",
    "</think>",
    "#### 4",
    "```\ndef f():\n",
    "x" * 20,
)
SHAPERS: tuple[tuple[Any, ...], ...] = (
    (),
    *((name,) for name in rr.list_shapers()),
    tuple(rr.list_shapers()),
    ("tests.unit.test_properties:Clipped", "smoothing"),
    ({"name": "contribution", "options": {"power": 2.5}}, {"name": "error_penalty", "options": {"beta": 3.0}}),
    ({"name": "smoothing", "options": {"weight": 0.5, "sweeps": 4}},),
)
LAYOUTS = ("left", "right", "middle")


class Clipped:
    """A shaper of one's own that keeps no sum."""

    def __call__(self, deltas: torch.Tensor, *_: Any) -> torch.Tensor:
        return deltas.clamp(-0.1, 0.1)


@dataclass(frozen=True)
class Response:
    """One response, independent of where it will stand: one token a character."""

    text: str
    reward: float
    early_reward: float
    group: str
    seed: int

    @property
    def is_penalty(self) -> bool:
        """Whether the early reward is a penalty, and not a reward on the way."""
        return self.seed % 2 == 0

    def surprise(self) -> torch.Tensor:
        return torch.rand(len(self.text), generator=torch.Generator().manual_seed(self.seed)) * 3


@st.composite
def responses(draw: st.DrawFn) -> Response:
    return Response(
        "".join(draw(st.lists(st.sampled_from(PIECES), max_size=8))),
        draw(st.sampled_from([0.0, 1.0, -1.0, 0.5, 100.0])),
        draw(st.sampled_from([0.0, 0.0, -0.125])),
        draw(st.sampled_from("abc")),
        draw(st.integers(0, 99)),
    )


batches = st.lists(responses(), min_size=1, max_size=6)
segmenters = st.sampled_from(rr.list_segmenters())
READ_THE_MASK = ("turn", "nested")
"""For these a masked stretch in the middle is a boundary."""

WITH_ANSWERS = [name for name in rr.list_segmenters() if name not in ("none", *READ_THE_MASK)]
"""For these a masked stretch in the middle ends an answer, as the end of a turn does."""


def without_answers(config: rr.RRedCoTConfig, layout: str) -> rr.RRedCoTConfig:
    """The config with segmenters that know no answers, where rollouts are laid out around a masked stretch."""
    if layout != "middle" or config.segmenter not in WITH_ANSWERS:
        return config
    return dataclasses.replace(config, segmenter_kwargs={"answer_markers": []})


def columns_of(tokens: int, width: int, layout: str) -> torch.Tensor:
    """Which columns hold the tokens: to the left, to the right, or with masked ones in between."""
    columns = torch.arange(tokens)
    if layout == "right":
        return columns + width - tokens
    return columns if layout == "left" else columns + 2 * (columns >= tokens // 2) + 1


def lay_out(batch: list[Response], layout: str, extra: int = 0) -> rr.Rollouts:
    width = max(len(response.text) for response in batch) + 3 + extra
    placed = {name: torch.zeros(len(batch), width) for name in ("rewards", "penalties", "log_probs", "entropies")}
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, response in enumerate(batch):
        columns = columns_of(len(response.text), width, layout)
        if not len(columns):
            continue
        mask[row, columns] = True
        ids[row, columns] = torch.tensor([ord(character) for character in response.text])
        placed["rewards"][row, columns[0]] += response.early_reward
        placed["penalties"][row, columns[0]] += response.early_reward * response.is_penalty
        placed["rewards"][row, columns[-1]] += response.reward
        placed["log_probs"][row, columns] = -response.surprise()
        placed["entropies"][row, columns] = response.surprise().flip(0)
    return rr.Rollouts(
        ids,
        mask,
        group_ids=[response.group for response in batch],
        texts=[response.text for response in batch],
        token_offsets=[[(i, i + 1) for i in range(len(response.text))] for response in batch],
        **placed,
    )


def numbers(batch: list[Response], states: int, size: float = 1.0) -> torch.Tensor:
    """Values of the first ``states`` states of each response, which move with it."""
    rows = [torch.randn(300, generator=torch.Generator().manual_seed(r.seed))[:states] for r in batch]
    return size * torch.stack(rows)


def probes(batch: list[Response], segments: rr.Segments) -> Probed:
    log_pi = -numbers(batch, 3 * segments.max_segments).abs().reshape(len(batch), -1, 3)
    utility = torch.tensor([[1.0, 0.5, 0.0]]).expand(len(batch), 3)
    valid = torch.tensor([[response.seed % 3 != 0, True, response.seed % 2 == 0] for response in batch])
    return Probed(
        log_pi, utility, valid & (torch.tensor([r.seed % 5 for r in batch]) > 0)[:, None], segments.num_segments
    )


@CHECK
@given(
    batches,
    segmenters,
    st.sampled_from(SHAPERS),
    st.sampled_from(LAYOUTS),
    st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    st.sampled_from([0.0, 0.9, 1.0]),
)
def test_rewards_sum_to_the_outcome_and_masked_tokens_get_nothing(
    batch: list[Response], segmenter: str, shapers: tuple, layout: str, size: float, lam: float
) -> None:
    rollouts = lay_out(batch, layout)
    config = rr.RRedCoTConfig(segmenter=segmenter, shapers=shapers, lam=lam)
    segments = config.build_segmenter()(rollouts)
    credit = rr.assign_credit(
        rollouts, config, segments=segments, values=numbers(batch, segments.max_segments, size)
    )
    outcome = rollouts.outcomes
    slack = 1e-5 * (1 + size + outcome.abs())  # float32, for numbers of that size
    assert ((credit.segment_rewards.sum(dim=1) - outcome).abs() <= slack).all()
    spread = rr.spread_to_tokens(credit.segment_rewards / segments.lengths.clamp(min=1), segments.segment_ids)
    assert ((spread.sum(dim=1) - outcome).abs() <= slack).all()
    for per_token in (credit.advantages, credit.returns, spread):
        assert (per_token[~rollouts.response_mask] == 0).all()
        assert torch.isfinite(per_token).all()
    assert (credit.segment_rewards[~segments.exists] == 0).all()


def credit_of(batch: list[Response], rollouts: rr.Rollouts, config: rr.RRedCoTConfig) -> rr.Credit:
    segments = config.build_segmenter()(rollouts)
    return rr.assign_credit(rollouts, config, segments=segments, probed=probes(batch, segments))


configs = st.builds(
    rr.RRedCoTConfig,
    segmenter=segmenters,
    shapers=st.sampled_from(SHAPERS),
    calibrate=st.just("none"),
    value_estimator=st.sampled_from(["support", "self_normalized", "own_ratio", "confidence"]),
    scale=st.sampled_from(["group_std", "none", "batch_std"]),
    mode=st.sampled_from(["segment_gae", "weighted"]),
    match_grpo=st.booleans(),
    leave_one_out=st.booleans(),
    clip=st.just(5.0),
)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@CHECK
@given(batches, configs, st.sampled_from(LAYOUTS), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(
    batch: list[Response], config: rr.RRedCoTConfig, layout: str, random: Any
) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)
    shuffled = [batch[row] for row in order]
    one = credit_of(batch, lay_out(batch, layout), config)
    other = credit_of(shuffled, lay_out(shuffled, layout), config)
    for name in ("advantages", "returns", "values", "segment_rewards"):
        assert close(getattr(one, name)[order], getattr(other, name)), name


@CHECK
@given(batches, configs, st.sampled_from(LAYOUTS), st.integers(0, 5))
def test_where_a_response_stands_does_not_matter(
    batch: list[Response], config: rr.RRedCoTConfig, layout: str, extra: int
) -> None:
    assume(layout != "middle" or config.segmenter not in READ_THE_MASK)
    config = without_answers(config, layout)
    first, second = lay_out(batch, "left"), lay_out(batch, layout, extra)
    one, other = credit_of(batch, first, config), credit_of(batch, second, config)
    assert close(one.values, other.values)
    assert close(one.segment_rewards, other.segment_rewards)
    assert close(one.advantages[first.response_mask], other.advantages[second.response_mask])


@settings(CHECK, max_examples=40)
@given(
    batches, st.sampled_from(["fixed", "newline", "hybrid"]), st.sampled_from(["left", "right"]), st.integers(0, 5)
)
def test_nor_does_it_to_calibrated_values(batch: list[Response], segmenter: str, layout: str, extra: int) -> None:
    batch = [dataclasses.replace(response, reward=min(1.0, response.reward)) for response in batch]
    config = rr.RRedCoTConfig(
        segmenter=segmenter, scale="none"
    )  # siblings are told apart by masked tokens in the middle
    backwards = batch[::-1]
    one = credit_of(batch, lay_out(batch, "left"), config)
    other = credit_of(backwards, lay_out(backwards, layout, extra), config)
    assert torch.allclose(one.values.flip(0), other.values, atol=2e-3)
