"""The recipe's reward function, loaded by verl and called on responses whose worth is known."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat
from unittest import mock

from rredcot_plugin.adapter.process_rewards import FIELD, parse
from rredcot_plugin.dry_run.errors import RecipeError

Score = Callable[[Mapping[str, Any], str], float]
"""(row, response) -> what it earns."""

HOPELESS_ROWS = 2
HOPELESS = ("", "I do not know.", "\\boxed{}", "```python\n")
"""Responses that a reward has to take without an error."""


@dataclass(frozen=True)
class RewardTrial:
    """Mean reward of hopeless responses, and of the data's own solutions (NaN where there are none).

    ``best[i]`` is the form in which row i's solution earns most: as it is, or as a code block; None without one.
    ``untried`` says where rewards come from that a CPU cannot give; nothing can be trained then.
    """

    hopeless: float
    solutions: float
    best: tuple[str | None, ...]
    untried: str | None = None

    @classmethod
    def left_out(cls, source: str, rows: Sequence[Mapping[str, Any]]) -> RewardTrial:
        """Of rewards that ``source``, a key with its value, brings in."""
        return cls(math.nan, math.nan, (None,) * len(rows), source)

    def __str__(self) -> str:
        if self.untried is not None:
            return f"{self.untried}: not tried here"
        rows = sum(text is not None for text in self.best)
        text = f"hopeless responses earn {self.hopeless:g} on average"
        if math.isnan(self.solutions):
            return f"{text}; the data have no solutions to try"
        return f"{text}, the data's own solutions {self.solutions:g} ({rows} rows)"

    @property
    def warning(self) -> str | None:
        """What makes a reader doubt the reward; None where nothing does."""
        if self.solutions <= self.hopeless:  # not if there are none: NaN
            return "no solution of the data earns more than a hopeless response: check the reward and the data"
        return None


def try_reward(config: Any, rows: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> RewardTrial:
    """Call the reward as verl's reward loop would, on the first rows; not where it asks a reward model, which a GPU serves.

    Raises:
        RecipeError: the function cannot be loaded, raises, or returns something else than a finite number (or a
            mapping with one under ``score``, and ``process_rewards`` that can be read); names file and line where it raised.
    """
    reward_model = config.reward.reward_model
    if reward_model.enable:
        return RewardTrial.left_out(f"reward.reward_model.model_path={reward_model.model_path}", rows)
    with mock.patch.dict(os.environ, environment), _load(config) as score:
        return tried(score, rows)


def tried(score: Score, rows: Sequence[Mapping[str, Any]]) -> RewardTrial:
    """What ``score`` gives to hopeless responses of the first rows, and to the solutions of all."""
    hopeless = [score(row, text) for row in rows[:HOPELESS_ROWS] for text in HOPELESS]
    scored = [[(score(row, text), text) for text in _solutions(row)] for row in rows]
    best = [max(found, key=lambda pair: pair[0], default=None) for found in scored]
    earned = [pair[0] for pair in best if pair is not None]
    mean = sum(earned) / len(earned) if earned else math.nan
    return RewardTrial(sum(hopeless) / len(hopeless), mean, tuple(pair and pair[1] for pair in best))


@contextmanager
def _load(config: Any) -> Iterator[Score]:
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.reward_score import get_default_compute_score

    custom = config.reward.custom_reward_function
    try:
        function = get_custom_reward_fn(config) or get_default_compute_score(config.reward.reward_manager.name)
    except (FileNotFoundError, RuntimeError, AttributeError, ImportError, SyntaxError) as error:
        raise RecipeError(f"reward.custom_reward_function.path={custom.path}: {error}") from error

    def score(row: Mapping[str, Any], response: str) -> float:
        return _score(function, row, response, config)

    yield score


def _score(function: Callable[..., Any], row: Mapping[str, Any], response: str, config: Any) -> float:
    custom = config.reward.custom_reward_function
    name = f"reward ({custom.path or 'of verl'})"
    try:
        found = function(
            data_source=row[config.data.reward_fn_key],
            solution_str=response,
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=row.get("extra_info") or {},
        )
        if inspect.isawaitable(found):
            found = asyncio.run(_value_of(found))
    except Exception as error:  # the function is the recipe's: anything may come out of it
        where = f", line {line}" if (line := _line_of(error, custom.path)) else ""
        raise RecipeError(f"{name}{where} raises {type(error).__name__} on {response!r}: {error}") from error
    number = found.get("score") if isinstance(found, Mapping) else found
    if not isinstance(number, SupportsFloat) or not math.isfinite(float(number)):
        raise RecipeError(f"{name}: expected a finite number, or a mapping with one under 'score', got {found!r}")
    _check_process_rewards(found.get(FIELD) if isinstance(found, Mapping) else None, response, name)
    return float(number)


def _check_process_rewards(said: Any, response: str, name: str) -> None:
    """A list stops verl's validation."""
    told, _ = parse(said)
    if told and not isinstance(said, str):
        raise RecipeError(
            f"{name}: {FIELD}: verl's validation takes means over lists and fails where their lengths differ; return "
            f"json.dumps({told!r})"
        )
    check_told(said, "solution_str", response, name)


def check_told(said: Any, text: str, response: str, name: str) -> None:
    """In a run what cannot be read counts for nothing.

    Raises:
        RecipeError: ``process_rewards`` that cannot be read, or name characters that the ``response`` has not; ``text`` is what
            its characters are of.
    """
    told, readable = parse(said)
    if not readable or any(end > len(response) for end, _ in told):
        raise RecipeError(
            f"{name}: {FIELD}: expected pairs of a character of {text}, here at most {len(response)}, and a finite "
            f"number; got {said!r} on {response!r}"
        )


async def _value_of(awaitable: Any) -> Any:
    return await awaitable


def _line_of(error: BaseException, path: str | None) -> int | None:
    """The last line of the recipe's own file that the error came through."""
    if not path:
        return None
    own = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == Path(path)
    ]
    return own[-1] if own else None


def _solutions(row: Mapping[str, Any]) -> list[str]:
    """The data's own solutions, as they are and as a code block."""
    extra = row.get("extra_info") or {}
    texts = [*(extra.get("references") or [])[:1], extra.get("solution") or ""]
    found = list(dict.fromkeys(text for text in texts if text))
    return [form for text in found for form in (text, f"```python\n{text}\n```")]
