"""The committed results, read only: a file that is damaged is named with the command that makes it again."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Interval = dict[str, float]
REQUIRED = ("benchmark", "command", "commit", "machine", "settings", "summary", "raw")
ENDS = ("low", "value", "high")
ROUNDING = 1e-9
COMMANDS = {
    "segmenter_signal_more": "python benchmarks/segmenter_signal.py --families parts sorting chains "
    "--segmenters newline sentence hybrid fixed_8 entropy --output benchmarks/results/segmenter_signal_more.json",
    "fidelity": "make bench-fidelity",
    "fidelity_lm": "make bench-lm",
    "gradient": "make bench-gradient",
    **{
        f"gradient_{family}": f"python benchmarks/gradient.py --families {family} --candidates 256 "
        f"--output benchmarks/results/gradient_{family}.json"
        for family in ("own_sums", "habits", "chains", "parts")
    },
    **{
        f"gradient_{name}": f"python benchmarks/gradient.py --families {families} --candidates 256 --pool 0 --success {success} "
        f"--output benchmarks/results/gradient_{name}.json"
        for name, families, success in (
            ("hard", "habits own_sums", "0.02 0.2"),
            ("medium", "habits own_sums", "0.2 0.8"),
            ("easy", "habits own_sums", "0.8 0.98"),
            ("any", "habits own_sums chains sorting parts sums", "0 1"),
        )
    },
    "gradient_any_totals": "python benchmarks/gradient.py --families totals --prompts 6 --candidates 24 --pool 0 --success 0 1 "
    "--output benchmarks/results/gradient_any_totals.json",
    "learning_low_floor": "python benchmarks/learning.py --families habits chains parts --systems grpo rredcot no_baseline "
    "--system low_floor baseline=least_variance 'baseline_kwargs={floor: 0.0001, pseudo_rollouts: 32}' scale=none "
    "--system low_floor_half baseline=least_variance 'baseline_kwargs={floor: 0.0001, pseudo_rollouts: 32}' scale=none "
    "credit_weight=0.5 --system low_variance baseline=trace 'baseline_kwargs={floor: 0.0001, pseudo_rollouts: 32}' scale=none "
    "credit_weight=0.5 --rates 1e-4 --tuning-seeds --merge benchmarks/results/learning_no_baseline.json "
    "--output benchmarks/results/learning_low_floor.json",
    "learning_shape": "python benchmarks/learning.py --prompts 8 --group 2 --families habits chains parts --systems grpo no_baseline "
    "rredcot --system low_variance preset=low_variance --rates 1e-4 --tuning-seeds --seeds 0 1 2 3 4 "
    "--output benchmarks/results/learning_shape.json",
    "learning_shape_4": "python benchmarks/learning.py --prompts 4 --group 4 --families habits chains parts --systems grpo "
    "otb otb_leave_one_out --system low_variance preset=low_variance --rates 1e-4 --tuning-seeds --seeds 0 1 2 3 4 "
    "--output benchmarks/results/learning_shape_4.json",
    **{
        f"learning_{study}_1": f"python benchmarks/learning.py --prompts 16 --group 1 --families {families} --systems grpo "
        "reinforce_plus_plus rredcot --system lean preset=lean --system low_variance preset=low_variance --rates 1e-4 "
        f"--tuning-seeds --seeds 0 1 2 3 4 --output benchmarks/results/learning_{study}_1.json"
        for study, families in (("shape", "habits chains parts"), ("shares", "shares"))
    },
    "learning_shares_4": "python benchmarks/learning.py --prompts 4 --group 4 --families shares --systems grpo rredcot otb otb_leave_one_out "
    "--system low_variance preset=low_variance --rates 1e-4 --tuning-seeds --seeds 0 1 2 3 4 "
    "--output benchmarks/results/learning_shares_4.json",
    **{
        f"shape_signal_{family}": f"python benchmarks/shape_signal.py --families {family} --blocks 12 "
        f"--output benchmarks/results/shape_signal_{family}.json"
        for family in ("words", "totals")
    },
    **{
        f"learning_greedy_{name}": f"python benchmarks/learning.py --greedy --prompts {16 // group} --group {group} --families chains "
        f"shares --systems {systems} --rates {rate} --tuning-seeds --seeds 0 1 2 3 4 "
        f"--output benchmarks/results/learning_greedy_{name}.json"
        for name, group, systems, rate in (
            ("4", 4, "grpo", "1e-4"),
            ("1", 1, "grpo rredcot true_credit true_baseline", "1e-4"),
            ("1_faster", 1, "grpo rredcot true_credit", "2e-4"),
        )
    },
    **{
        f"learning_line_rewards_{group}": f"python benchmarks/learning.py --prompts {16 // group} --group {group} --families shares "
        f"rungs --systems {systems} --rates 1e-4 --tuning-seeds --seeds 0 1 2 3 4 "
        f"--output benchmarks/results/learning_line_rewards_{group}.json"
        for group, systems in (
            (4, "grpo"),
            (1, "rredcot reinforce_plus_plus line_rewards line_rewards_lam50 line_rewards_reinforce_plus_plus"),
        )
    },
    "learning_traps_1": "python benchmarks/learning.py --prompts 16 --group 1 --families traps --systems rredcot line_rewards "
    "line_rewards_lam50 line_rewards_lam0 --rates 1e-4 --tuning-seeds --seeds 0 1 2 3 4 "
    "--output benchmarks/results/learning_traps_1.json",
    "shape_signal_shares": "python benchmarks/shape_signal.py --families shares "
    "--output benchmarks/results/shape_signal_shares.json",
    **{
        f"learning_lm_shape_{group}": f"python benchmarks/learning.py --batch lm --matmul bfloat16 --families words --steps 50 "
        f"--eval-every 10 --prompts {16 // group} --group {group} --systems grpo {more}"
        "--system low_variance preset=low_variance --rates 2e-5 --tuning-seeds "
        f"--seeds 0 1 2 3 --output benchmarks/results/learning_lm_shape_{group}.json"
        for group, more in ((4, ""), (1, "rredcot "))
    },
    **{
        f"learning_lm_ranks_{group}": f"python benchmarks/learning.py --batch lm --matmul bfloat16 --families ranks --steps 50 "
        f"--eval-every 10 --prompts {16 // group} --group {group} --systems {systems} --rates 2e-5 --tuning-seeds "
        f"--seeds 0 1 2 3 4 --output benchmarks/results/learning_lm_ranks_{group}.json"
        for group, systems in ((4, "grpo"), (1, "grpo rredcot line_rewards --system lean preset=lean"))
    },
    **{
        f"learning_lm_{family}_{which}": f"python benchmarks/learning.py --batch lm --matmul bfloat16 --families {family} "
        f"--steps 50 --eval-every 10 --prompts 16 --group 1 --systems rredcot {more} --rates 2e-5 --tuning-seeds "
        f"--seeds {seeds} --output benchmarks/results/learning_lm_{family}_{which}.json"
        for which, seeds, family, more in (
            ("again", "5 6 7", "ranks", "mc_grpo --system lean preset=lean"),
            ("again", "5 6 7", "totals", "--system lean preset=lean"),
            ("more", "8 9", "ranks", "mc_grpo"),
            ("more", "8 9", "totals", "--system lean preset=lean"),
            ("continued", "8 9 10 11 12", "totals", "mc_grpo"),
        )
    },
    **{
        f"learning_lm_{family}_{which}_4": f"python benchmarks/learning.py --batch lm --matmul bfloat16 --families {family} "
        f"--steps 50 --eval-every 10 --prompts 4 --group 4 --systems {systems} --rates 2e-5 --tuning-seeds --seeds {seeds} "
        f"--output benchmarks/results/learning_lm_{family}_{which}_4.json"
        for which, seeds in (("again", "5 6 7"), ("more", "8 9"))
        for family, systems in (("ranks", "grpo rloo otb_leave_one_out"), ("totals", "grpo otb_leave_one_out"))
    },
    **{
        f"learning_lm_totals_rates_{which}": "python benchmarks/learning.py --batch lm --matmul bfloat16 --families totals "
        f"--steps 50 --eval-every 10 --prompts {16 // group} --group {group} --systems {systems} --rates 1e-5 2e-5 4e-5 "
        f"--tuning-seeds 8 --seeds 9 --output benchmarks/results/learning_lm_totals_rates_{which}.json"
        for which, group, systems in (
            ("4", 4, "grpo"),
            ("1", 1, "rredcot"),
            ("again", 1, "grpo rredcot --system lean preset=lean"),
        )
    },
    **{
        f"learning_lm_ranks_faster_{group}": "python benchmarks/learning.py --batch lm --matmul bfloat16 --families ranks "
        f"--steps 50 --eval-every 10 --prompts {16 // group} --group {group} --systems {systems} --rates 4e-5 --tuning-seeds "
        f"--seeds 5 --output benchmarks/results/learning_lm_ranks_faster_{group}.json"
        for group, systems in ((4, "grpo"), (1, "grpo rredcot --system lean preset=lean"))
    },
    **{
        f"learning_lm_totals_{group}": f"python benchmarks/learning.py --batch lm --matmul bfloat16 --families totals --steps 50 "
        f"--eval-every 10 --prompts {16 // group} --group {group} --systems {systems} --rates 2e-5 --tuning-seeds "
        f"--seeds 0 1 2 3 4 --output benchmarks/results/learning_lm_totals_{group}.json"
        for group, systems in ((4, "grpo rloo rredcot"), (1, "grpo rredcot"))
    },
    "learning_shape_4_rates": "python benchmarks/learning.py --prompts 4 --group 4 --families habits chains parts --systems grpo "
    "--rates 5e-5 1e-4 2e-4 --tuning-seeds 9001 9002 9003 --seeds 0 1 2 3 4 "
    "--output benchmarks/results/learning_shape_4_rates.json",
    "learning": "make bench-learning",
    "learning_parts": "python benchmarks/learning.py --families parts "
    "--systems grpo rredcot trace_baseline control_no_reward "
    "--output benchmarks/results/learning_parts.json --page docs/evidence/learning.md",
    "learning_window": "python benchmarks/learning.py --families habits chains --systems grpo rredcot_window4 "
    "--system w16 calibrate_window=16 --system w64 calibrate_window=64 --rates 1e-4 1.4e-4 --seeds 0 "
    "--output benchmarks/results/learning_window.json",
    "fidelity_earlier": "python benchmarks/fidelity.py --diagnose --families chains sums --estimators default support "
    "--output benchmarks/results/fidelity_earlier.json",
    "fidelity_window": "python benchmarks/fidelity.py --diagnose --past 24 --draws 2 "
    "--output benchmarks/results/fidelity_window.json",
    "gradient_chains_past": "python benchmarks/gradient.py --families chains --candidates 256 --past 24 "
    "--output benchmarks/results/gradient_chains_past.json",
    "gradient_own_sums_past": "python benchmarks/gradient.py --families own_sums --candidates 256 --past 24 "
    "--output benchmarks/results/gradient_own_sums_past.json",
    "gradient_later": "python benchmarks/gradient.py --families habits own_sums chains --candidates 256 --past 24 "
    "--output benchmarks/results/gradient_later.json",
    "learning_later": "python benchmarks/learning.py --families habits chains parts "
    "--systems grpo rredcot trace_baseline control_no_reward --system credit_weight_half credit_weight=0.5 "
    "--system credit_weight_auto credit_weight=auto --output benchmarks/results/learning_later.json",
    "learning_no_baseline": "python benchmarks/learning.py --families habits chains parts "
    "--systems grpo rredcot trace_baseline no_baseline --merge benchmarks/results/learning_later.json "
    "--output benchmarks/results/learning_no_baseline.json",
    "learning_own_sums": "python benchmarks/learning.py --batch large --families own_sums --systems grpo trace_baseline "
    "--system credit_weight_half credit_weight=0.5 --rates 2.5e-5 5e-5 1e-4 --seeds 0 1 2 3 4 "
    "--output benchmarks/results/learning_own_sums.json",
    **{
        f"learning_large{name}": f"python benchmarks/learning.py --batch large {shape}--families habits chains shares "
        f"--systems grpo rredcot --system lean preset=lean {more}"
        f"--output benchmarks/results/learning_large{name}.json"
        for name, shape, more in (("", "", ""), ("_1", "--prompts 64 --group 1 ", "--seeds 0 1 2 3 4 "))
    },
    "learning_later_sums": "python benchmarks/learning.py --prompts 16 --group 1 --families shares rungs --systems rredcot "
    "--system credit_weight_half credit_weight=0.5 --system credit_weight_auto credit_weight=auto --rates 1e-4 "
    "--tuning-seeds --seeds 0 1 2 3 4 --output benchmarks/results/learning_later_sums.json",
    "learning_large_verl": "python benchmarks/learning.py --against-verl --families sums "
    "--systems grpo mc_grpo attention gradient rredcot_paper red rredcot --seeds 0 1 2 --verl-seeds 0 1 2",
    # of the version whose default segmenter was hybrid, on the processor that `rredcot plan` reckons with
    "assign_credit_hybrid": "python benchmarks/assign_credit.py --output benchmarks/results/assign_credit_hybrid.json",
    "baseline_weights": "python benchmarks/baseline_weights.py --families chains habits",
    "segmenter_signal": "python benchmarks/segmenter_signal.py --families habits own_sums "
    "--segmenters newline sentence hybrid hybrid_16 fixed_8 entropy",
    # FOLDER has the model's tokenizer and the GGUF file, which the repository does not hold
    "segment_lengths": "python benchmarks/segment_lengths.py --model FOLDER "
    "--gguf SmolLM2-135M-Instruct.Q4_1.gguf --traces 16",
    "agent": "python benchmarks/agent.py --steps 20 --seeds 0 1 2 3 4 5 6 7",
    "estimators": "make bench-estimators",
    "tabular_gradient": "make bench-tabular",
    "return_equivalence": "make bench-tabular",
    "overhead": "make bench-overhead",
    "probe_overhead": "make bench-probes",
    "gradient_lm": "python benchmarks/gradient.py --families words --prompts 6 --pool 33 --candidates 24 --output benchmarks/results/gradient_lm.json",
    "gradient_lm_totals": "python benchmarks/gradient.py --families totals --prompts 6 --pool 33 --candidates 24 "
    "--output benchmarks/results/gradient_lm_totals.json",
    "gradient_lm_functions": "python benchmarks/gradient.py --families functions --prompts 6 --pool 0 --candidates 24 "
    "--output benchmarks/results/gradient_lm_functions.json",
    "gradient_lm_totals_gpu": "python benchmarks/gradient.py --device cuda --families totals --prompts 6 --pool 33 "
    "--candidates 24 --output benchmarks/results/gradient_lm_totals_gpu.json",
    "learning_lm_gpu": "python benchmarks/learning.py --batch lm_gpu --device cuda --families words "
    "--systems grpo rredcot trace_baseline --rates 1e-5 --seeds 0 1 2 3 4 --jobs 5",
    "gpu": "python benchmarks/gpu/run.py --passes cached packed",
    "gpu_groups": "python benchmarks/gpu/run.py --passes cached@96 cached packed@96 flex --output benchmarks/results/gpu_groups.json",
    "openrlhf_passes": ".venv-openrlhf/bin/python benchmarks/openrlhf_passes.py",
    "openrlhf_step": ".venv-openrlhf/bin/python benchmarks/openrlhf_step.py",
    "step_share": "rredcot demo --out demo_output && python benchmarks/step_share.py demo_output/rredcot/tensorboard",
}


def command_of(name: str) -> str:
    """What makes a result again."""
    return COMMANDS.get(name, f"python benchmarks/{name}.py")


@dataclass(frozen=True)
class Committed:
    """A folder of results, ``<benchmark>.json`` each."""

    folder: Path

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def record(self, name: str) -> dict[str, Any] | None:
        """A result; None where there is none, or only cells of a run that was stopped.

        Raises:
            ValueError: the file is damaged; names it, what is wrong, and the command that makes it again.
        """
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(_damaged(path, str(error))) from error
        if isinstance(record, dict) and record.get("finished") is False:
            return None
        if wrong := _what_is_wrong(record):
            raise ValueError(_damaged(path, wrong))
        return dict(record)

    def entry(self, name: str, key: str) -> Interval | None:
        """An entry of a result's summary; None where there is none."""
        record = self.record(name)
        return None if record is None else record["summary"].get(key)


def _damaged(path: Path, wrong: str) -> str:
    return f"{path}: damaged ({wrong}); take it from git, or make it again: {command_of(path.stem)}"


def _what_is_wrong(record: Any) -> str | None:
    """Why a record cannot be used; None if it can."""
    if not isinstance(record, dict):
        return f"expected an object, got {type(record).__name__}"
    if missing := [key for key in REQUIRED if key not in record]:
        return f"no {', '.join(missing)}"
    if not isinstance(record["summary"], dict) or not record["summary"]:
        return "its summary is empty"
    for key, entry in record["summary"].items():
        if not isinstance(entry, dict) or not all(isinstance(entry.get(end), int | float) for end in ENDS):
            return f"summary entry {key!r} is not a value with low and high"
        low, value, high = (float(entry[end]) for end in ENDS)
        inside = low - ROUNDING <= value <= high + ROUNDING
        if not inside or not all(map(math.isfinite, (low, value, high))):
            return f"summary entry {key!r}: {value} is not a finite number between {low} and {high}"
    return None
