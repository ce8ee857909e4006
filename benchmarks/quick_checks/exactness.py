"""What must come out exactly: whole result files, probes by every backend, and the enumerated policies again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from probe_passes import ProbeSizes, build_model, make_passes
from return_equivalence import SETTLED, Field, gradient_gap
from return_equivalence import Settings as ReturnSettings
from tabular.prompts import Prompt, random_prompt
from tabular.steering import check_sums, kinds, tables
from tabular_gradient import Settings as GradientSettings
from tabular_gradient import enumerated

from quick_checks.committed import Committed, command_of
from quick_checks.verdicts import SAME, WRONG, Finding, exact, nothing

EXACT = 1e-5
"""Largest difference of log-probs, sums, and relative gradients."""
REPRODUCED = 1e-4
"""Largest |measured − committed| / max(1, |committed|) of numbers that were rounded to five digits."""
POLICIES = 2
"""The first ones of the committed runs."""
ROUNDING = 1e-12
PROBES = ProbeSizes(tokens=128, probes=6, probe_tokens=4)


def check_results(committed: Committed) -> list[Finding]:
    """Every result file is whole; one row for those that are, and one for each that is not."""
    found, whole = [], []
    for name in committed.names():
        file = f"{name}.json"
        try:
            record = committed.record(name)
        except ValueError as error:
            found.append(Finding(file, WRONG, file, "whole", note=str(error)))
            continue
        if record is None:
            note = f"its run was stopped and goes on with: {command_of(name)}"
            found.append(nothing(file, file, note=note))
        else:
            whole.append(name)
    if not whole:
        return [*found, nothing("results", str(committed.folder), note="no whole result file in this folder")]
    return [Finding(f"{len(whole)} files are whole", SAME, ", ".join(whole)), *found]


@torch.no_grad()
def check_probes(committed: Committed) -> list[Finding]:
    """The three backends agree, and a probe costs its tokens. A float64 model: what is left rounds log-probs to float32."""
    model = build_model().double()
    tokens, log_probs = {}, {}
    for name, run in make_passes(PROBES, model).items():
        with CountedTokens(model) as counted:
            log_probs[name] = run()
        tokens[name] = counted.tokens
    found = []
    for name in ("packed", "batched"):
        gap = float((log_probs[name] - log_probs["cached"]).abs().max())
        found.append(exact(f"log-probs of probes, {name} against cached", gap, EXACT, "each other"))
    for name in ("cached", "packed"):
        gap = abs(tokens[name] / PROBES.tokens - PROBES.floor)
        source = f"floor (T + K·A) / T = {PROBES.floor:g}"
        found.append(exact(f"tokens that {name} reads, over T", gap, 0.0, source))
    return [*found, _committed_floor(committed)]


def _committed_floor(committed: Committed) -> Finding:
    name, source = "formula of the floor", "probe_overhead.json: token_floor"
    record = committed.record("probe_overhead")
    if record is None:
        return nothing(name, source)
    sizes = ProbeSizes(*(record["settings"][key] for key in ("tokens", "probes", "probe_tokens")))
    return exact(name, abs(sizes.floor - record["summary"]["token_floor"]["value"]), ROUNDING, source)


ROUNDING = 1e-12


class CountedTokens:
    """Counts the tokens that the model's embedding reads while the block runs."""

    def __init__(self, model: Any) -> None:
        self.embedding, self.tokens = model.get_input_embeddings(), 0

    def __enter__(self) -> CountedTokens:
        self.hook = self.embedding.register_forward_hook(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        self.hook.remove()

    def _count(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self.tokens += inputs[0].numel()


def check_gradient(committed: Committed) -> list[Finding]:
    """Part 1 of tabular_gradient.py on the first policies: λ = 1 has no bias, and every row comes out again."""
    record = committed.record("tabular_gradient")
    if record is None:
        return [nothing("rows of the enumerated gradient", "tabular_gradient.json")]
    stored, known = record["settings"], record["raw"]["gradient"]
    settings = replace(GradientSettings(), choices=tuple(stored["choices"]), group=stored["group"])
    rows = enumerated(prompts_of(record), replace(settings, draws=stored["draws"]))
    unbiased = {
        name: max(own["bias"])
        for name, own in rows.items()
        if name.endswith("_lam_1") and not name.startswith("monte_carlo")
    }
    found = [exact("bias at λ = 1, largest", max(unbiased.values()), EXACT, "theory: no bias", largest(unbiased))]
    for measure in ("bias", "cosine", "snr_vs_grpo"):
        gaps = {name: gap_of(rows[name][measure], known[name][measure]) for name in rows if name in known}
        title = f"{measure}, {len(gaps)} methods × {POLICIES} policies"
        source = f"tabular_gradient.json: raw.gradient.*.{measure}"
        found.append(exact(title, worst(gaps), REPRODUCED, source, largest(gaps)))
    different = set(rows) ^ (set(known) - set(stored["sampled"]))
    return [*found, *(nothing(f"method {name}", "tabular_gradient.json") for name in sorted(different))]


def check_returns(committed: Committed) -> list[Finding]:
    """return_equivalence.py on the first policies: sums, the gradient at λ = 1, and where λ = 1 and 0 lead."""
    record = committed.record("return_equivalence")
    if record is None:
        return [nothing("rows of return equivalence", "return_equivalence.json")]
    stored, raw, functions = record["settings"], record["raw"], kinds()
    own = {
        key: tuple(v) if isinstance(v := stored[key], list) else v
        for key in ("choices", "steps", "rate", "starts")
    }
    field = Field(prompts_of(record), replace(ReturnSettings(), **own))
    gaps, regrets = {}, {}
    for name, kind in functions.items():
        for lam in (1.0, 0.0):
            table = tables(field.prompts, kind, lam)
            if lam == 1.0 and kind.honest:
                gaps[name] = gradient_gap(field.prompts, table)
            row = f"{name}/lam_{lam:g}"
            if row in raw:
                regrets[row] = gap_of(field.regret(field.climb(table)), raw[row], relative=False)
    new = sorted(name for name in functions if f"{name}/lam_1" not in raw)
    sums = check_sums(field.prompts, functions)
    return [
        exact("|Σ r − R|, largest", sums, EXACT, "theory: 0 (return_equivalence.json: sum_gap)"),
        exact("gradient at λ = 1, prefix values", worst(gaps), EXACT, "theory: the true one", largest(gaps)),
        exact(
            f"regret, {len(regrets)} rows × {POLICIES} policies", worst(regrets), SETTLED,
            "return_equivalence.json: raw", largest(regrets),
        ),
        *(nothing(f"kind {name}", "return_equivalence.json") for name in new),
    ]  # fmt: skip


def prompts_of(record: Mapping[str, Any]) -> list[Prompt]:
    """The first policies of a committed run, by its seeds."""
    return [random_prompt(tuple(record["settings"]["choices"]), seed) for seed in record["seeds"][:POLICIES]]


def gap_of(measured: list[float], known: list[float], relative: bool = True) -> float:
    """Largest |measured − known|, over max(1, |known|) if ``relative``, of the first policies; NaN if one is."""
    own, other = np.array(measured[:POLICIES]), np.array(known[:POLICIES])
    return float(np.max(np.abs(own - other) / (np.maximum(1.0, np.abs(other)) if relative else 1.0)))


def worst(gaps: Mapping[str, float]) -> float:
    return float(np.max(list(gaps.values()))) if gaps else float("nan")


def largest(gaps: Mapping[str, float]) -> str:
    """Which one it is; a NaN before all."""
    return f"largest: {max(gaps, key=lambda name: (gaps[name] != gaps[name], gaps[name]))}" if gaps else "no rows"
