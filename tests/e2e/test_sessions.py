"""Training steps with an agent loop whose sessions have two rows each."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from tests.e2e.harness import Inputs, train

pytestmark = pytest.mark.e2e

LOOPS = "- name: rewriting\n  _target_: tests.e2e.rewriting_loop.RewritingLoop\n"

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return sum(int(c) for c in solution_str if c in "0123456789") % 7 / 7
"""


def test_both_rows_of_a_session_are_trained_on_the_credit_of_their_own_turns(
    demo_inputs: Inputs, tmp_path: Path
) -> None:
    loops, reward = tmp_path / "loops.yaml", tmp_path / "reward.py"
    loops.write_text(LOOPS)
    reward.write_text(REWARD)
    run = train(
        dataclasses.replace(demo_inputs, reward=reward),
        tmp_path,
        "algorithm.adv_estimator=rredcot",
        "+algorithm.rredcot.segmenter=newline",
        f"+algorithm.rredcot.dump_dir={tmp_path}/dump",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=rewriting",
    )
    assert run.code == 0, run.tail()
    for step in run.steps.values():
        assert step["rredcot/sessions/rows/mean"] == 2
        assert step["rredcot/fallback/missing_row/mean"] == step["rredcot/fallback/lost_end/mean"] == 0
        assert step["rredcot/probes/in_pass/mean"] == 1
        assert step["rredcot/credit/return_error/max"] < 1e-5
        assert all(math.isfinite(value) for name, value in step.items() if name.startswith("rredcot/"))
    traces = [json.loads(line) for line in (tmp_path / "dump" / "2.jsonl").read_text().splitlines()]
    assert len({trace["session"] for trace in traces}) == len(traces) == 16
    different = 0
    for trace in traces:
        prompts = [own["prompt"] for own in trace["outputs"]]
        assert len(prompts) == 2 and prompts[0] != prompts[1]
        assert sum(s["reward"] for s in trace["segments"]) == pytest.approx(trace["reward"], abs=1e-4)
        draft, answer = ([s for s in trace["segments"] if s["output"] == number] for number in (0, 1))
        assert draft and answer
        different += abs(draft[0]["advantage"] - answer[0]["advantage"]) > 1e-3
    assert different > 4, "not one number for the whole session"
