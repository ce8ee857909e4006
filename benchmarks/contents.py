"""Writes the tables of benchmarks/README.md: every committed result with the command that makes it and the page that shows it.

    python benchmarks/contents.py            # writes the tables
    python benchmarks/contents.py --check    # exit code 1 if the page differs from them

Commands are those of quick_checks/committed.py, times those that the results record.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from quick_checks.committed import Committed, command_of

FOLDER = Path(__file__).parent
PAGE = FOLDER / "README.md"
BEGIN, END = "<!-- {}: written by benchmarks/contents.py -->", "<!-- end of {} -->"
OVERHEAD, LEARNING, GRADIENT = "evidence/overhead", "evidence/learning", "evidence/gradient"
VALUES, TABULAR, ESTIMATORS = "evidence/values", "evidence/tabular", "evidence/estimators"
LANGUAGE_MODEL = "evidence/language-model"
SCALING, CHOOSING, AGENTS = "guides/scaling", "guides/choosing-values", "guides/agents"


@dataclass(frozen=True)
class Entry:
    """What a result answers, and the page of docs/ with its numbers; without one it is only compared with by quick.py."""

    question: str
    page: str | None


GROUPS: dict[str, dict[str, Entry]] = {
    "cost": {
        "overhead": Entry("time and memory of probes by trace length, number of probes and backend", OVERHEAD),
        "probe_overhead": Entry("one size of that, in more rounds", OVERHEAD),
        "assign_credit": Entry("credit of a batch without model calls: time, memory, growth", OVERHEAD),
        "assign_credit_hybrid": Entry("the same with the segmenter `hybrid`; `rredcot plan` uses it", SCALING),
        "driver": Entry("what a step costs the driver's process, alone and shared", SCALING),
        "plan_check": Entry("predictions of `rredcot plan` against measured passes", SCALING),
        "step_share": Entry("share of a training step of the demo", OVERHEAD),
        "openrlhf_step": Entry("the same in OpenRLHF", OVERHEAD),
        "openrlhf_passes": Entry("probes in OpenRLHF's log-prob pass, over the floor of their tokens", OVERHEAD),
        "gpu": Entry("probes on the log-prob pass of large shapes, on an H100", OVERHEAD),
        "gpu_groups": Entry("the same in smaller groups, and with FlexAttention", OVERHEAD),
        "sum_pi_squared": Entry("Σπ² of every token on top of a log-prob pass", OVERHEAD),
        "import_time": Entry("`import verl` with the plugin and without", OVERHEAD),
        "segmenters": Entry("tokens per second of every segmenter", None),
    },
    "evidence": {
        "learning": Entry("does it train faster: 16 rollouts per step", LEARNING),
        "learning_parts": Entry("the same on the task `parts`", LEARNING),
        "learning_large": Entry("the same with 64 rollouts per step, 8 prompts × 8", LEARNING),
        "learning_large_1": Entry("… as 64 prompts × 1", LEARNING),
        "learning_no_baseline": Entry("the same without any baseline", LEARNING),
        "learning_window": Entry("calibration over 4, 16 and 64 steps", LEARNING),
        "learning_large_verl": Entry("the lean trainer against real runs of verl", LEARNING),
        "learning_lm_gpu": Entry("learning of a real language model, on an H100", LANGUAGE_MODEL),
        "learning_lm_shape_4": Entry(
            "learning of a real language model in steps of 4 prompts × 4", LANGUAGE_MODEL
        ),
        "learning_lm_shape_1": Entry("… of 16 prompts × 1", LANGUAGE_MODEL),
        "learning_lm_ranks_4": Entry(
            "… with rewards that are shares of right lines, in groups of four", LANGUAGE_MODEL
        ),
        "learning_lm_ranks_1": Entry("… with rewards on the lines that earned them", LANGUAGE_MODEL),
        "learning_lm_ranks_again": Entry(
            "… other seeds and the last bits of other weights, with MC-GRPO", LANGUAGE_MODEL
        ),
        "learning_lm_ranks_again_4": Entry(
            "… in groups of four, with RLOO and the optimal token baseline without the own reward", LANGUAGE_MODEL
        ),
        "learning_lm_ranks_more_4": Entry(
            "… two more, and the last bits of a third model's weights", LANGUAGE_MODEL
        ),
        "learning_lm_ranks_more": Entry("… of 16 prompts × 1, with MC-GRPO", LANGUAGE_MODEL),
        "learning_lm_ranks_faster_4": Entry("… at twice the rate, in groups of four", LANGUAGE_MODEL),
        "learning_lm_ranks_faster_1": Entry("… of 16 prompts × 1", LANGUAGE_MODEL),
        "learning_lm_totals_4": Entry("… on another of its tasks, in groups of four", LANGUAGE_MODEL),
        "learning_lm_totals_1": Entry("… of 16 prompts × 1", LANGUAGE_MODEL),
        "learning_lm_totals_again": Entry(
            "… other seeds and the last bits of other weights, with one baseline per trace", LANGUAGE_MODEL
        ),
        "learning_lm_totals_again_4": Entry(
            "… in groups of four, with the optimal token baseline without the own reward", LANGUAGE_MODEL
        ),
        "learning_lm_totals_more_4": Entry(
            "… two more, and the last bits of a third model's weights", LANGUAGE_MODEL
        ),
        "learning_lm_totals_more": Entry("… of 16 prompts × 1, with one baseline per trace", LANGUAGE_MODEL),
        "learning_lm_totals_continued": Entry("… and with MC-GRPO", LANGUAGE_MODEL),
        "learning_lm_totals_rates_4": Entry("… at three rates, in groups of four", LANGUAGE_MODEL),
        "learning_lm_totals_rates_1": Entry("… of 16 prompts × 1", LANGUAGE_MODEL),
        "learning_lm_totals_rates_again": Entry(
            "… with the last bits of other weights, without a baseline and with one per trace", LANGUAGE_MODEL
        ),
        "learning_low_floor": Entry("the same with baselines of a low floor, at one rate", LEARNING),
        "learning_shape": Entry("the same rollouts as 8 prompts × 2 in place of 2 × 8", LEARNING),
        "learning_shape_4": Entry("… as 4 prompts × 4", LEARNING),
        "learning_shape_1": Entry("… as 16 prompts × 1, with REINFORCE++ and more", LEARNING),
        "learning_shape_4_rates": Entry("… with GRPO's rate tuned there", LEARNING),
        "learning_shares_4": Entry("learning from shares of right results, 4 prompts × 4", LEARNING),
        "learning_shares_1": Entry("… 16 prompts × 1, with REINFORCE++ too", LEARNING),
        "learning_greedy_4": Entry("validated with the most probable tokens too: 4 prompts × 4", LEARNING),
        "learning_greedy_1": Entry("… 16 prompts × 1, with credit from true values", LEARNING),
        "learning_greedy_1_faster": Entry("… at twice the rate", LEARNING),
        "learning_line_rewards_4": Entry("rewards that are sums over lines, at the end: 4 prompts × 4", LEARNING),
        "learning_line_rewards_1": Entry("… and on the lines that earned them: 16 prompts × 1", LEARNING),
        "learning_traps_1": Entry("… where a mistake earns more at once", LEARNING),
        "gradient": Entry("signal over variance of the gradient, by way of giving credit", GRADIENT),
        "gradient_habits": Entry("the same on the task `habits`", GRADIENT),
        "gradient_chains": Entry("the same on `chains`", GRADIENT),
        "gradient_own_sums": Entry("the same on `own_sums`", GRADIENT),
        "gradient_parts": Entry("the same on `parts`", GRADIENT),
        "gradient_hard": Entry("the same on prompts that are hardly ever solved, without continuations", GRADIENT),
        "gradient_medium": Entry("… on prompts solved 20 to 80 % of the time", GRADIENT),
        "gradient_easy": Entry("… on prompts that are mostly solved", GRADIENT),
        "gradient_any": Entry("… on prompts of any success", GRADIENT),
        "gradient_any_totals": Entry("… of a real language model", GRADIENT),
        "shape_signal": Entry("signal over variance by prompts × rollouts of a step", GRADIENT),
        "shape_signal_words": Entry("… of a real language model", GRADIENT),
        "shape_signal_totals": Entry("… on another of its tasks", GRADIENT),
        "shape_signal_shares": Entry("… of a tiny model that earns shares", GRADIENT),
        "gradient_chains_past": Entry("`chains` with values calibrated on earlier steps", GRADIENT),
        "gradient_own_sums_past": Entry("`own_sums` with values calibrated on earlier steps", GRADIENT),
        "gradient_lm": Entry("signal over variance on a real language model", LANGUAGE_MODEL),
        "gradient_lm_totals": Entry("the same on the task `totals`", LANGUAGE_MODEL),
        "gradient_lm_functions": Entry("the same on the task `functions`", LANGUAGE_MODEL),
        "gradient_lm_totals_gpu": Entry("another draw of `totals`, on an H100", LANGUAGE_MODEL),
        "gradient_later": Entry(
            "credit of later segments (`credit_weight`), with values calibrated on earlier steps", GRADIENT
        ),
        "forks": Entry("rollouts that fork once, for each generated token", GRADIENT),
        "learning_later": Entry("learning with `credit_weight`", GRADIENT),
        "learning_later_sums": Entry("the same with 16 × 1 where rewards are sums over lines", GRADIENT),
        "learning_own_sums": Entry("the same on `own_sums`, which no system improves on", GRADIENT),
        "segmenter_signal": Entry("the same by segmenter", GRADIENT),
        "segmenter_signal_more": Entry("the same on `parts`, `sorting` and `chains`", GRADIENT),
        "segment_lengths": Entry("lengths of segments on traces of a real language model", GRADIENT),
        "baseline_weights": Entry("which weight a baseline should give to a rollout", CHOOSING),
        "tabular_gradient": Entry("is the gradient exact, where the true one can be enumerated", TABULAR),
        "return_equivalence": Entry("where a policy ends with wrong reward models", TABULAR),
        "estimators": Entry("which of verl's advantage estimators are exact", ESTIMATORS),
        "agent": Entry("does credit per turn train a tool user faster, in real verl", AGENTS),
        "fidelity": Entry("values and credit against Monte-Carlo values", VALUES),
        "fidelity_lm": Entry("the same on a real language model", LANGUAGE_MODEL),
        "fidelity_earlier": Entry("which further features would help, on two tasks", VALUES),
        "fidelity_window": Entry("the same with values calibrated on earlier steps", VALUES),
    },
}


def table(group: str, committed: Committed) -> str:
    """One line per result of a group, in Markdown."""
    lines = ["| result | question | command | recorded time | page |", "| --- | --- | --- | --- | --- |"]
    for name, entry in GROUPS[group].items():
        page = f"[{entry.page}](../docs/{entry.page}.md)" if entry.page else "`make bench-quick` compares with it"
        cells = (
            f"[{name}](results/{name}.json)",
            entry.question,
            f"`{command_of(name)}`",
            recorded_time(name, committed),
            page,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def recorded_time(name: str, committed: Committed) -> str:
    """CPU time of the run that wrote a result, or the sum over its training runs; a dash where the file has none."""
    record = committed.record(name)
    if record is None:
        return "–"
    runs = record["raw"] if isinstance(record["raw"], list) else []
    walls = [run["wall_seconds"] for run in runs if isinstance(run, dict) and run.get("wall_seconds")]
    if walls:
        return f"{sum(walls) / 3600:.1f} h in {len(walls)} runs"
    seconds = record["settings"].get("cpu_seconds")
    return "–" if seconds is None else f"{seconds / 60:.0f} min"


def filled(text: str, committed: Committed) -> str:
    """The page with its tables; ValueError where a mark is missing."""
    for group in GROUPS:
        begin, end = BEGIN.format(group), END.format(group)
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{PAGE}: expected {begin} and {end} once each")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table(group, committed)}\n{end}{rest.split(end)[1]}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page differs")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before, Committed(FOLDER / "results"))
    if check:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
