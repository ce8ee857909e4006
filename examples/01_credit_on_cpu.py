"""Credit of a few traces of a small model, without verl: sample, probe, assign, print. Needs `pip install 'rredcot[demo,verl]'`.

python examples/01_credit_on_cpu.py [a Hugging Face model that ends its answers with "#### …"]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rredcot_plugin as rr
from rredcot_plugin.demo.reward import compute_score
from rredcot_plugin.values.base import Probed

MODEL = sys.argv[1] if len(sys.argv) > 1 else str(Path(rr.__file__).parent / "tiny" / "checkpoint")
QUESTION, ANSWER, GROUP = "8 + 7 - 9 + 4 =", "10", 8

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL).eval()
chat = [{"role": "user", "content": QUESTION}]
prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)

# 1. a group of rollouts of one prompt, with their rewards
sampled = model.generate(prompt, do_sample=True, temperature=1.3, max_new_tokens=96, num_return_sequences=GROUP)
responses = sampled[:, prompt.shape[1] :]
mask = (responses != tokenizer.pad_token_id) & (responses != tokenizer.eos_token_id)
texts = [tokenizer.decode(row[keep]) for row, keep in zip(responses, mask, strict=True)]
rewards = torch.zeros(responses.shape)
for row, text in enumerate(texts):
    last = max(0, int(mask[row].sum()) - 1)
    rewards[row, last] = compute_score("rredcot_demo/chain_sum", text, ANSWER)["score"]
offsets = [[(i, i + 1) for i in range(int(keep.sum()))] for keep in mask]  # this model has a token a character
rollouts = rr.Rollouts(responses, mask, rewards, [QUESTION] * GROUP, texts=texts, token_offsets=offsets)

# 2. a segment a line; at every boundary: how probable is the right answer, if the model had to answer here?
segments = rr.get_segmenter("newline")(rollouts)
bridge = tokenizer("\n#### ", add_special_tokens=False)["input_ids"]
probe = tokenizer(f"{ANSWER}{tokenizer.eos_token}", add_special_tokens=False)["input_ids"]
log_pi = torch.zeros(GROUP, segments.max_segments, 1)
for row, count in enumerate(segments.num_segments.tolist()):
    boundaries = prompt.shape[1] + segments.starts[row, :count]
    log_pi[row, :count] = rr.probe_log_probs(model, sampled[row], boundaries, [probe], bridge=bridge)

# 3. redistribute the rewards; 4. look
probed = Probed(log_pi, torch.ones(GROUP, 1), torch.ones(GROUP, 1).bool(), segments.num_segments)
config = rr.RRedCoTConfig(value_estimator="ground_truth", calibrate="none", lam=0.0, scale="none")
credit = rr.assign_credit(rollouts, config, segments=segments, probed=probed)
for row in range(GROUP):
    print(f"--- reward {rollouts.outcomes[row]:.0f}")
    starts = [*segments.starts[row, : segments.num_segments[row]].tolist(), len(texts[row])]
    for i, value in enumerate(credit.values[row, : segments.num_segments[row]].tolist()):
        line = texts[row][starts[i] : starts[i + 1]].strip()
        print(f"  value before {value:5.2f}   credit {credit.advantages[row, starts[i]]:+5.2f}   {line}")
