"""A reward function that says which line earned what; the score stays the whole reward.

    reward.custom_reward_function.path=examples/06_process_rewards.py algorithm.adv_estimator=rredcot

It wraps the demo's reward: an eighth for every line whose sum is right, beside the answer's 1. Run this file to see what it
returns.
"""

from __future__ import annotations

import json
import re

from rredcot_plugin.demo import reward as of_answers

LINE = re.compile(r"([0-9]{1,9}) ([+-]) ([0-9]{1,9}) = (-?[0-9]{1,9})")
EARNS = 0.125


def right_lines(text):
    """The ends of the lines that are right, in characters of the response."""
    return [line.end() for line in LINE.finditer(text) if int(line[1]) + int(line[2] + line[3]) == int(line[4])]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Each pair is a character, and what was earned by what is written up to there. As JSON, since verl's validation takes means
    over lists."""
    answer = of_answers.compute_score(data_source, solution_str, ground_truth)["score"]
    told = [[end, EARNS] for end in right_lines(solution_str)]
    return {"score": answer + EARNS * len(told), "acc": answer, "process_rewards": json.dumps(told)}


if __name__ == "__main__":
    for text in ("7 - 4 = 3\n3 + 2 = 5\n#### 5", "7 - 4 = 3\n3 + 2 = 6\n#### 6"):
        print(repr(text), compute_score("rredcot_demo/chain_sum", text, "5"))
