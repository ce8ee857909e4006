"""`rredcot score` without its terminal: read, score chunk by chunk, append."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import rredcot_plugin
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.offline.chunks import Chunk, make_chunks
from rredcot_plugin.offline.encode import RowEncoder
from rredcot_plugin.offline.input_columns import last_outputs, read_rows
from rredcot_plugin.offline.json_lines import BadLine
from rredcot_plugin.offline.loading import Placement, load_model, load_tokenizer
from rredcot_plugin.offline.model import Scorer
from rredcot_plugin.offline.output import Output, digest
from rredcot_plugin.offline.score import ChunkScorer, check_offline
from rredcot_plugin.values.reference import reference_column


@dataclass(frozen=True)
class ScoreSettings:
    """What to score, with what, into what. Raises ValueError naming key, value and what is allowed."""

    rollouts: Path
    model: str
    out: Path
    config: RRedCoTConfig = field(default_factory=RRedCoTConfig)
    device: str = "auto"
    dtype: str = "auto"
    temperature: float = 1.0
    prompts: str = "auto"
    chat_template: Path | None = None
    groups_per_chunk: int = 16
    batch_tokens: int = 16384
    trust_remote_code: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        check_offline(self.config)
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature}: expected a number greater than 0")
        if self.out.resolve() == self.rollouts.resolve():
            raise ValueError(f"out={self.out}: these are the rollouts themselves; use another file")

    def meta(self, placement: Placement) -> dict[str, Any]:
        """All that the numbers depend on, but for the model's weights."""
        return {
            "version": rredcot_plugin.__version__,
            "rollouts_sha256": digest(self.rollouts),
            "model": self.model,
            "dtype": placement.dtype,
            "temperature": self.temperature,
            "prompts": self.prompts,
            "chat_template_sha256": None if self.chat_template is None else digest(self.chat_template),
            "groups_per_chunk": self.groups_per_chunk,
            "options": asdict(self.config),
        }


@dataclass(frozen=True)
class Progress:
    """Rollouts that are done, of all that there are; left-out ones count as done."""

    done: int
    total: int


@dataclass(frozen=True)
class ScoreResult:
    """Lines that were left out, whatever run met them; means of the metrics over the chunks of this run."""

    left_out: list[BadLine]
    metrics: dict[str, float]
    chunks: int


Tell = Callable[[str], None]

SHOWN = 5
"""Lines that are named."""

CONFIGS = ("config.json", "adapter_config.json")
"""What a folder with a model, or with an adapter of one, holds."""


def run_score(settings: ScoreSettings, tell: Tell, show: Callable[[Progress], None]) -> ScoreResult:
    """Score what is left to score. ``tell`` gets sentences.

    Raises:
        OutputExistsError: an output in the way, or one that another process writes to.
        ValueError: rollouts or a model that cannot be read, or an output that somebody else has changed.
    """
    _check_model(settings.model)
    placement = Placement.choose(settings.device, settings.dtype)
    found, bad = read_rows(settings.rollouts, reference_column(settings.config.build_value_estimator()))
    rows = last_outputs(found)
    if len(rows) < len(found):
        tell(
            f"{len(found) - len(rows)} earlier outputs of a session are left out: only its last one is scored here, "
            "while training gives credit to every output"
        )
    if odd := [row.line for row in rows if not math.isfinite(row.reward)]:
        lines = ", ".join(map(str, odd[:SHOWN])) + (" …" if len(odd) > SHOWN else "")
        tell(
            f"{len(odd)} of {len(rows)} rewards are NaN or infinite (lines {lines}): these rollouts get no credit"
        )
    chunks = make_chunks(rows, settings.groups_per_chunk)
    tokenizer = load_tokenizer(settings.model, settings.chat_template, settings.trust_remote_code)
    scorer = ChunkScorer(RowEncoder(tokenizer, settings.prompts), settings.config)
    scorer.observe(chunks)
    metrics: list[dict[str, float]] = []
    with Output.open(settings.out, settings.meta(placement), settings.force) as output:
        done = sum(len(chunk.rows) for chunk in chunks[: output.state.chunks])
        if done:
            tell(f"continuing after {done} of {len(rows)} rollouts")
        show(Progress(done, len(rows)))
        for size, found_metrics in _score(settings, placement, scorer, chunks, output):
            done += size
            metrics.append(found_metrics)
            show(Progress(done, len(rows)))
    return ScoreResult([*bad, *output.state.left_out], _means(metrics), len(metrics))


def _check_model(name: str) -> None:
    """A path to no model would be taken for a name on the Hugging Face hub, or fail with what transformers says."""
    path = Path(name)
    if path.is_dir() and any((path / config).is_file() for config in CONFIGS):
        return
    if not path.exists() and not name.startswith(("/", ".", "~")):
        return  # a name on the hub
    found = (
        "is a file" if path.is_file() else "no config.json in this folder" if path.is_dir() else "no such folder"
    )
    hint = "; the shell did not expand ~: write $HOME instead" if name.startswith("~") else ""
    raise ValueError(
        f"model={name}: {found}; expected a folder with config.json, tokenizer and weights, or a name on the Hugging Face "
        f"hub, such as Qwen/Qwen3-4B{hint}"
    )


def _score(
    settings: ScoreSettings, placement: Placement, score: ChunkScorer, chunks: Sequence[Chunk], output: Output
) -> Iterator[tuple[int, dict[str, float]]]:
    """Rows and metrics of every chunk that was left to do."""
    left = chunks[output.state.chunks :]
    if not left:
        return
    model = load_model(settings.model, placement, settings.trust_remote_code)
    scorer = Scorer(model, settings.config.probe_backend, settings.temperature, settings.batch_tokens)
    calibrator = settings.config.build_calibrator()
    calibrator.load_state_dict(dict(output.state.calibrator))
    for chunk in left:
        scored = score(chunk, scorer, calibrator)
        output.append(scored.records, calibrator.state_dict(), scored.left_out)
        yield len(chunk.rows), dict(scored.metrics)


def _means(chunks: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each metric over the chunks that have it."""
    names = sorted({name for chunk in chunks for name in chunk})
    return {name: fmean(chunk[name] for chunk in chunks if name in chunk) for name in names}
