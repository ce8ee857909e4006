"""The data that flows through the method. Every shape is checked once, here.

Notation, everywhere in the package: B rollouts, T response tokens, S segments of a trace (so S - 1
boundaries after the prompt), N proposals (answers), P probe tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from rredcot_plugin.checks import check_finite, check_integers, check_shape, check_shares, check_tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

MASKED = -1
"""Segment id of a token that the response mask leaves out."""

LARGEST_OUTCOME = 1e30

BLOCK = 1 << 15
"""Numbers of a tensor that ``by_rows`` looks at together."""


def by_rows(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """``work`` on the rows of all tensors, done in blocks of rows and put together.

    Temporaries as large as a batch leave the cache, and their memory is new each time; those of a block stay. On a CPU
    a large batch takes half the time or less.
    """
    if tensors[0].device.type != "cpu":
        return work(*tensors)
    rows = max(1, BLOCK // max(1, *(x[:1].numel() for x in tensors)))
    return torch.cat([work(*block) for block in zip(*(x.split(rows) for x in tensors), strict=True)])


def add_per_segment(numbers: Tensor, segment_ids: Int[Tensor, "B T"], width: int) -> Tensor:
    """Sum of the numbers (B, T) over each segment, (B, ``width``); what stands on masked tokens counts nowhere."""
    # masked tokens go to an extra first column, which is cut off
    sums = numbers.new_zeros(len(segment_ids), width + 1)
    return sums.scatter_add_(1, segment_ids - MASKED, numbers)[:, 1:]


@dataclass(frozen=True)
class Rollouts:
    """A batch of responses with their rewards.

    Padding may stand left or right: ``response_mask`` alone says which tokens are the model's, and masked ones
    between them are what a tool or a user answered. ``rewards`` are verl's ``token_level_rewards``; the outcome R of
    a trace is their sum over the mask.
    ``log_probs`` and ``entropies`` describe the sampled tokens in nats; segmenters and calibration
    features use them where they are given. ``sum_pi_squared`` is Σ_v π_v² of the distribution that each token was drawn
    from, in [0, 1], at the temperature of ``log_probs``; ``baseline: token`` needs it. ``token_offsets[b][t]`` is the half-open character span of
    token t in ``texts[b]``; tokens that share a multi-byte character share its span.
    ``token_scores[name][b, t]`` is what the value estimator of that name reads: a number about the state
    before token t (``reward_model``, ``critic``, ``monte_carlo``, ``environment``) or about the token (``attention``,
    ``gradient``); NaN where there is none. ``references[b]`` are solutions of the data set. ``penalties`` are
    the part of ``rewards`` that is always kept on its own tokens instead of being redistributed (KL in the reward).
    ``versions[b]`` is the version of the policy that wrote the last token of row b, by which calibration's window knows how old
    the row is; NaN where it is not known.
    ``token_ids`` may be None where nobody reads them: ``assign_credit`` is given segments and the numbers of their states.

    Raises:
        ValueError: what is not a tensor, a shape that does not fit, log-probs that are not finite under the mask, or sums of
            squares outside [0, 1].
    """

    token_ids: Int[Tensor, "B T"] | None
    response_mask: Bool[Tensor, "B T"]
    rewards: Float[Tensor, "B T"]
    group_ids: Sequence[Hashable]
    log_probs: Float[Tensor, "B T"] | None = None
    entropies: Float[Tensor, "B T"] | None = None
    texts: list[str] | None = None
    token_offsets: list[Any] | None = None
    ground_truths: list[Any] | None = None
    token_scores: Mapping[str, Float[Tensor, "B T"]] | None = None
    references: list[Any] | None = None
    penalties: Float[Tensor, "B T"] | None = None
    sum_pi_squared: Float[Tensor, "B T"] | None = None
    versions: Float[Tensor, " B"] | None = None

    def __post_init__(self) -> None:
        name = "response_mask" if self.token_ids is None else "token_ids"
        check_tensor(name, getattr(self, name))
        shape = tuple(getattr(self, name).shape)
        if len(shape) != 2:
            raise ValueError(f"{name}: expected two dimensions (B, T), got shape {shape}")
        check_shape("response_mask", self.response_mask, shape)
        object.__setattr__(self, "response_mask", self.response_mask.bool())
        if isinstance(self.group_ids, torch.Tensor):  # the entries of a tensor are equal to themselves alone
            object.__setattr__(self, "group_ids", self.group_ids.tolist())
        check_shape("rewards", self.rewards, shape)
        object.__setattr__(self, "rewards", self.rewards.detach())
        for name in ("log_probs", "entropies", "penalties", "sum_pi_squared"):
            tensor = getattr(self, name)
            if tensor is not None:
                check_shape(name, tensor, shape)
                object.__setattr__(self, name, tensor.detach())
                check_finite(name, tensor, self.response_mask)
        if self.sum_pi_squared is not None:
            check_shares("sum_pi_squared", self.sum_pi_squared, self.response_mask)
        if self.versions is not None:
            check_shape("versions", self.versions, shape[:1])
        for name, scores in (self.token_scores or {}).items():
            check_shape(f"token_scores[{name!r}]", scores, shape)
        for name in ("group_ids", "texts", "token_offsets", "ground_truths", "references"):
            rows, needed = getattr(self, name), name == "group_ids"
            if (rows is None and needed) or isinstance(rows, str) or (rows is not None and len(rows) != shape[0]):
                got = repr(rows) if rows is None or isinstance(rows, str) else len(rows)
                raise ValueError(f"{name}: expected {shape[0]} entries, one per rollout, got {got}")
        for group in self.group_ids:
            if not isinstance(group, Hashable):
                raise ValueError(
                    f"group_ids: expected numbers, texts or tuples, got {type(group).__name__} {group!r}"
                )
        if (self.texts is None) != (self.token_offsets is None):
            raise ValueError("texts and token_offsets: expected both or neither, got only one of them")

    @property
    def batch_size(self) -> int:
        return self.response_mask.shape[0]

    def take(self, index: Sequence[int]) -> Rollouts:
        """Some of the rows, in this order."""

        def some(rows: Any) -> Any:
            return rows[list(index)] if isinstance(rows, torch.Tensor) else [rows[i] for i in index]

        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "token_scores"}
        taken: dict[str, Any] = {name: None if rows is None else some(rows) for name, rows in given.items()}
        if self.token_scores is not None:
            taken["token_scores"] = {name: some(scores) for name, scores in self.token_scores.items()}
        return Rollouts(**taken)

    @property
    def outcomes(self) -> Float[Tensor, " B"]:
        """R, the sum of the rewards over the mask; NaN or infinite where a reward function returned that, or where the sum or a
        token has more than 1e30, with which float32 cannot reckon."""
        rewards = torch.where(self.response_mask, self.rewards.float(), 0.0)
        # in float64, so that the width of the padding does not decide how a sum is rounded
        total = rewards.sum(dim=1, dtype=torch.float64).float()
        beyond = (total.abs() > LARGEST_OUTCOME) | (rewards.abs() > LARGEST_OUTCOME).any(dim=1)
        return total.masked_fill(beyond, torch.inf)

    @property
    def scores(self) -> Float[Tensor, " B"]:
        """The outcomes without the penalties, taken off token by token: equal scores stay equal whatever penalties sum to."""
        if self.penalties is None:
            return self.outcomes
        left = torch.where(self.response_mask, self.rewards.float() - self.penalties.float(), 0.0)
        score, total = left.double().sum(dim=1).float(), self.outcomes
        return torch.where(torch.isfinite(total), score, total)


@dataclass(frozen=True)
class Segments:
    """A partition of each trace: ``segment_ids`` is −1 where masked, else 0..num_segments−1 in order.

    The last segment of a trace is its answer segment. Every unmasked token lies in exactly one segment;
    an empty response has zero segments.

    Raises:
        ValueError: ids that are not integers, out of order, with a gap, or outside 0..num_segments−1.
    """

    segment_ids: Int[Tensor, "B T"]
    num_segments: Int[Tensor, " B"]

    def __post_init__(self) -> None:
        check_integers("segment_ids", self.segment_ids)
        check_integers("num_segments", self.num_segments)
        if self.segment_ids.ndim != 2:
            raise ValueError(f"segment_ids: expected (B, T), got shape {tuple(self.segment_ids.shape)}")
        check_shape("num_segments", self.num_segments, (self.segment_ids.shape[0],))
        if bool((self.segment_ids < MASKED).any()):
            lowest = int(self.segment_ids.min())
            raise ValueError(f"segment_ids: expected {MASKED} on masked tokens and ids from 0, got {lowest}")
        row, _, ids = self._runs
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        step = ids - torch.where(first, MASKED, ids.roll(1))
        if bool((step < 0).any()):
            raise ValueError("segment_ids: expected ids that never decrease along a trace, got a decrease")
        if bool((step > 1).any()):
            raise ValueError("segment_ids: expected consecutive ids from 0, got a segment without tokens")
        last = ids.new_zeros(len(self.segment_ids)).scatter_reduce_(0, row, ids + 1, reduce="amax")
        if bool((last != self.num_segments).any()):
            raise ValueError(
                f"num_segments: expected the last id + 1 = {last.tolist()}, got {self.num_segments.tolist()}"
            )

    @property
    def max_segments(self) -> int:
        """S, the width of every (B, S) tensor; at least 1."""
        return max(1, int(self.num_segments.max())) if self.num_segments.numel() else 1

    @property
    def exists(self) -> Bool[Tensor, "B S"]:
        """True where a trace has that segment."""
        columns = torch.arange(self.max_segments, device=self.num_segments.device)
        return columns[None, :] < self.num_segments[:, None]

    @cached_property
    def _runs(self) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"], Int[Tensor, " M"]]:
        return _runs(self.segment_ids)

    @cached_property
    def lengths(self) -> Int[Tensor, "B S"]:
        """Tokens in each segment, 0 in the padding."""
        width, one = self.max_segments, torch.ones((), dtype=torch.int64, device=self.segment_ids.device)

        return by_rows(lambda ids: add_per_segment(one.expand_as(ids), ids, width), self.segment_ids)

    @cached_property
    def starts(self) -> Int[Tensor, "B S"]:
        """Offset of each segment's first token in the response, T in the padding."""
        B, T = self.segment_ids.shape
        row, column, ids = self._runs
        starts = torch.full((B * self.max_segments,), T, dtype=torch.int64, device=self.segment_ids.device)
        # a segment that goes on after masked tokens has several runs
        starts.scatter_reduce_(0, row * self.max_segments + ids, column, reduce="amin")
        return starts.view(B, self.max_segments)

    def at_starts(self, numbers: Tensor) -> Tensor:
        """(B, S): the numbers (B, T) at the first token of each segment; 0 in the padding, also where no row has a token."""
        return torch.nn.functional.pad(numbers, (0, 1)).gather(1, self.starts)


def _runs(segment_ids: Int[Tensor, "B T"]) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"], Int[Tensor, " M"]]:
    """Row, first column and id of every stretch of equal ids, the masked ones left out, in reading order."""
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    row, column = begins.nonzero(as_tuple=True)
    ids = segment_ids[row, column]
    real = ids > MASKED
    return row[real], column[real], ids[real]


def check_partition(
    segments: Segments, response_mask: Bool[Tensor, "B T"], numbers: Sequence[int] | None = None
) -> None:
    """Raise ``ValueError`` unless ``segments`` cover exactly the unmasked tokens, naming the first row that differs;
    ``numbers`` are what the rows are called, if not 0, 1, …"""
    if not isinstance(segments, Segments):
        raise ValueError(f"segments: expected Segments(segment_ids, num_segments), got {type(segments).__name__}")
    check_shape("segments.segment_ids", segments.segment_ids, response_mask.shape)
    covered = segments.segment_ids > MASKED
    wrong = (covered != response_mask).any(dim=1).nonzero()
    if wrong.numel():
        row = int(wrong[0])
        missing, extra = response_mask[row] & ~covered[row], covered[row] & ~response_mask[row]
        raise ValueError(
            f"segments of rollout {row if numbers is None else numbers[row]}: expected every unmasked token in one segment and no masked one, got "
            f"{int(missing.sum())} unmasked tokens without and {int(extra.sum())} masked tokens with a segment"
        )


@dataclass(frozen=True)
class Credit:
    """What the method returns.

    ``values[b, i]`` is V̂ of the state before segment i (i = 0: the prompt); ``segment_rewards`` is the
    redistributed reward r, which sums to the outcome over a trace. ``deltas`` is the segment credit δ after shapers and
    penalties: r without the value of the prompt, which the first segment did not earn. ``baselines`` are what the
    advantages are measured from: ``values``, unless ``baseline`` says otherwise; the mean over the tokens of a segment
    where the baseline has a number per token. All are 0 in the padding, and so are ``advantages`` and ``returns`` where
    the mask is false.
    """

    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]
    segments: Segments
    values: Float[Tensor, "B S"]
    segment_rewards: Float[Tensor, "B S"]
    deltas: Float[Tensor, "B S"]
    metrics: dict[str, float] = field(default_factory=dict)
    baselines: Float[Tensor, "B S"] | None = None
