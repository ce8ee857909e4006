"""What limits the default: other features, windows and fits on the same rollouts, against the same reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from lab.agreement import Interval
from lab.estimators import Workbench, config_of
from lab.extra_features import EXTRA, extra_features
from lab.judged import Judge, Judged
from rredcot_plugin.groups import group_stats
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.values import siblings
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.features import NAMES, boundary_features
from rredcot_plugin.values.labelled_states import LabelledStates, fold_of_groups
from rredcot_plugin.values.prefix_numbers import prefix_numbers

SHORTER = (0, 1, 2, 4, 8, 16)
"""Windows, in past steps, that are looked at beside the whole past of a draw."""

PROBE = tuple(name for name in NAMES if "logit_value" in name)
LOG_PROBS = tuple(name for name in NAMES if "log_prob" in name)
PRODUCTS = tuple(name for name in NAMES if "*" in name)
ENTROPIES = tuple(name for name in NAMES if "entropy" in name)


def without(*names: str) -> list[str]:
    return [name for name in NAMES if name not in names]


def variants(past: int) -> dict[str, tuple[list[str], int]]:
    """Name -> features and window, of so many past steps; the first one is the default."""
    sets = {
        "default features": list(NAMES),
        "without the probe": without(*PROBE),
        "probe alone": ["logit_value"],
        "without log-probs": without(*LOG_PROBS),
        "without entropies": without(*ENTROPIES),
        "without others' mean": without("logit_others_mean"),
        "without siblings": without(*siblings.NAMES),
        "without products": without(*PRODUCTS),
        **{f"+ {name}": [*NAMES, *columns] for name, columns in EXTRA.items()},
        "+ all of these": [*NAMES, *(column for columns in EXTRA.values() for column in columns)],
    }
    found = {name: (columns, past) for name, columns in sets.items()}
    for window in shorter(past):
        found[f"default features, window {window}"] = (list(NAMES), window)
    return found


def shorter(past: int) -> list[int]:
    return [window for window in SHORTER if window < past]


class Table:
    """Features by name of every state of every batch, (B, S) each, and what a calibrator needs beside them."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.columns = [self._batch(index) for index in range(len(bench.batches))]

    def _batch(self, index: int) -> dict[str, torch.Tensor]:
        bench, rollouts = self.bench, self.bench.batches[index].rows.rollouts
        config, segments = config_of("support"), bench.segments[index]
        credit = assign_credit(rollouts, config, segments=segments, probed=bench.probed(index, config))
        stats = group_stats(rollouts.outcomes, rollouts.group_ids, torch.isfinite(rollouts.outcomes))
        valid, unit = torch.isfinite(rollouts.outcomes), credit.values.clamp(0, 1)
        prefixes = prefix_numbers(rollouts, segments)
        found = boundary_features(prefixes, segments, unit, stats, stats.others_mean, rollouts.outcomes, valid)
        own = dict(zip(NAMES, found.unbind(2), strict=True))
        return own | extra_features(bench, index, own)

    def values(self, names: Sequence[str], window: int, first: int = 1) -> np.ndarray:
        """Cross-fitted values of the last batch; ``first`` 0 fits the prompt's state as well."""
        calibrator = OutcomeCalibrator(window=window)
        for index in range(max(0, len(self.columns) - 1 - window), len(self.columns)):
            states, fold, at = self.states(index, names, first)
            fitted = calibrator.calibrate(states, fold)
        if fitted is None:
            raise ValueError(f"{self.bench.actor.family.name}: all outcomes are the same, nothing to fit")
        rollouts = self.bench.batches[-1].rows.rollouts
        prior = group_stats(rollouts.outcomes, rollouts.group_ids, torch.isfinite(rollouts.outcomes)).others_mean
        values = prior[:, None].expand(at.shape).clone()
        values[at] = fitted
        return values.numpy()

    def states(
        self, index: int, names: Sequence[str], first: int
    ) -> tuple[LabelledStates, torch.Tensor, torch.Tensor]:
        rollouts, at = self.bench.batches[index].rows.rollouts, self.bench.segments[index].exists.clone()
        at[:, :first] = False
        features = torch.stack([self.columns[index][name].double() for name in names], dim=2)
        weight = (at / at.sum(1, keepdim=True).clamp(min=1)).double()
        outcome = rollouts.outcomes.double()[:, None].expand(at.shape)
        fold = fold_of_groups(rollouts.group_ids)[:, None].expand(at.shape)[at]
        return LabelledStates(features[at], outcome[at], weight[at], torch.ones_like(weight[at])), fold, at


def by_trees(table: Table, names: Sequence[str], window: int, kind: str) -> np.ndarray:
    """Trees instead of the logistic fit, ``boosted`` or extremely ``randomised``, on past batches only."""
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier

    last = len(table.columns) - 1
    past = [table.states(index, names, 0)[0] for index in range(max(0, last - window), last)]
    if kind == "boosted":
        model = HistGradientBoostingClassifier(
            max_iter=150, learning_rate=0.05, max_leaf_nodes=15, l2_regularization=5.0
        )
    else:
        model = ExtraTreesClassifier(300, min_samples_leaf=10, random_state=0)
    model.fit(
        torch.cat([p.features for p in past]).numpy(),
        torch.cat([p.outcome for p in past]).numpy() > 0.5,
        sample_weight=torch.cat([p.weight for p in past]).numpy(),
    )
    states, _, at = table.states(last, names, 0)
    values = np.zeros(at.shape)
    values[at.numpy()] = model.predict_proba(states.features.numpy())[:, -1]
    return values


def on_reference(table: Table, judged: Judged, names: Sequence[str]) -> np.ndarray:
    """The logistic fit with Monte-Carlo values as labels, other prompts' only: what the features could give."""
    states, fold, at = table.states(len(table.columns) - 1, names, 0)
    truth = torch.from_numpy(judged.reference.values)[at]
    known = torch.isfinite(truth)
    labelled = LabelledStates(states.features[known], truth[known], states.weight[known], states.importance[known])
    values = torch.zeros(at.shape)
    fitted = OutcomeCalibrator(l2=0.1).calibrate(labelled, fold[known])
    if fitted is None:
        raise ValueError(f"{table.bench.actor.family.name}: all Monte-Carlo values are the same, nothing to fit")
    rows, columns = at.nonzero().T
    values[rows[known], columns[known]] = fitted
    return values.numpy()


def diagnose(draws: Sequence[Judged], judge: Judge) -> dict[str, Interval]:
    """Print Pearson of value and delta, and ``blame``, of every variant; return the first two by ``variant/measure``."""
    if any(len(own.bench.batches) < 2 or len(np.unique(own.outcomes)) < 2 for own in draws):
        print("nothing to diagnose: one batch, or outcomes that are all the same")
        return {}
    results = [_variants(Table(own.bench), own) for own in draws]
    found: dict[str, Interval] = {}
    print(f"\n{draws[0].bench.actor.family.name}: {'':28s}{'value':>8s}{'delta':>8s}{'wrong V':>9s}{'blame':>8s}")
    for name in results[0]:
        measured = judge(draws, [own[name] for own in results])
        cells = [
            measured[key]["value"] for key in ("pearson_value", "pearson_delta", "pearson_value/wrong", "blame")
        ]
        print(f"  {name:44s}" + "".join(f"{cell:8.3f}" if math.isfinite(cell) else "       –" for cell in cells))
        found |= {f"{name}/{key}": measured[key] for key in ("pearson_value", "pearson_delta")}
    return found


def _variants(table: Table, judged: Judged) -> dict[str, np.ndarray]:
    """Values (B, S) of one draw by name."""
    everything, past = (
        [*NAMES, *(column for columns in EXTRA.values() for column in columns)],
        len(table.columns) - 1,
    )
    results = {name: table.values(columns, window) for name, (columns, window) in variants(past).items()}
    for label, names in (("default features", list(NAMES)), ("all features", everything)):
        results[f"{label}, prompt fitted too"] = table.values(names, past, first=0)
        for kind in ("boosted", "randomised"):
            results[f"{label}, {kind} trees"] = by_trees(table, names, past, kind)
            for window in shorter(past)[1:]:
                results[f"{label}, {kind} trees, window {window}"] = by_trees(table, names, window, kind)
        results[f"{label}, fitted to the reference"] = on_reference(table, judged, names)
    return results
