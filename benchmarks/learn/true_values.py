"""What a state is really worth, on tasks whose solution leaves no choice: a ceiling for every estimator of values."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from lab.family import Question
from lab.rollouts import Actor, LabBatch, encode, with_signals
from lab.tasks import EXACT_LINES

from rredcot_plugin.credit.redistribution import sum_per_segment
from rredcot_plugin.tiny.reasoner import IM_END
from rredcot_plugin.types import Rollouts, Segments

Cut = Callable[[Rollouts], Segments]


def true_values(actor: Actor, batch: LabBatch, segments: Segments, segmenter: Cut) -> torch.Tensor:
    """V (B, S) of the state before every line, by the actor's own log-probs of the rest of the clean solution.

    p_j is how probable line j of that solution is after its own earlier lines. Before the first mistake V_k = Π_{j≥k} p_j,
    after it 0: an answer then comes out right by luck alone. Where every line is rewarded for itself, V_k is the mean over
    lines of 1 or 0 for those that are written and of p_j for those to come.

    Raises:
        ValueError: a family whose lines can be right in several ways.
    """
    family = actor.family
    if family.name not in EXACT_LINES:
        raise ValueError(f"{family.name}: true values are known of {', '.join(EXACT_LINES)} alone")
    chances = _line_chances(actor, batch.questions, segmenter)
    values = torch.zeros(segments.exists.shape)
    for row, question in enumerate(batch.questions):
        right = _right_lines(actor, question, batch.rows.rollouts.texts[row], len(chances[question]) - 1)
        count = int(segments.num_segments[row])
        values[row, :count] = (shares if family.graded else products)(right, chances[question], count)
    return values


def products(right: torch.Tensor, chances: torch.Tensor, count: int) -> torch.Tensor:
    """V of the first ``count`` states where all lines must be right; ``chances`` (L,) of lines, the answer's last.

    >>> products(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5, 1.0]), 3).tolist()
    [0.25, 0.5, 0.0]
    """
    so_far = torch.nn.functional.pad(right, (1, 0), value=1.0).cumprod(0)
    to_come = chances.flip(0).cumprod(0).flip(0)
    return _of_length(so_far * to_come, count)


def shares(right: torch.Tensor, chances: torch.Tensor, count: int) -> torch.Tensor:
    """V of the first ``count`` states where every line but the answer's earns its share.

    >>> shares(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.25, 1.0]), 3).tolist()
    [0.375, 0.625, 0.5]
    """
    so_far = torch.nn.functional.pad(right, (1, 0)).cumsum(0)
    to_come = torch.nn.functional.pad(chances[:-1].flip(0).cumsum(0).flip(0), (0, 1))
    return _of_length((so_far + to_come) / len(right), count)


def _of_length(values: torch.Tensor, count: int) -> torch.Tensor:
    """The last value again for lines that are too many."""
    return values[torch.arange(count).clamp(max=len(values) - 1)]


def _line_chances(actor: Actor, questions: list[Question], segmenter: Cut) -> dict[Question, torch.Tensor]:
    """How probable every line of the clean solution is to the actor, by question."""
    distinct = list(dict.fromkeys(questions))
    rng = random.Random(0)  # there is one solution: nothing is drawn
    whole = [actor.family.write(question, rng) + IM_END for question in distinct]
    rows = [
        encode(actor, question, actor.prompt(question), actor.tokenizer(text)["input_ids"], str(number))
        for number, (question, text) in enumerate(zip(distinct, whole, strict=True))
    ]
    clean = with_signals(actor, rows, distinct).rows.rollouts
    cut = segmenter(clean)
    sums = sum_per_segment(clean.log_probs, cut).exp()
    return {q: sums[number, : cut.num_segments[number]] for number, q in enumerate(distinct)}


def _right_lines(actor: Actor, question: Question, text: str, count: int) -> torch.Tensor:
    """1 for each of the first ``count`` lines of a response that is right, 0 for one that is not or is missing."""
    lines = actor.family.lines(text)
    return torch.tensor([float(actor.family.right(question, lines, number)) for number in range(count)])
