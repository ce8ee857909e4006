"""Run with ``VERL_PLATFORM=cpu python -m tests.contract.engine_check DIR``: verl's FSDP2 engine with probes.

Builds the engine that verl's registry gives for this platform, runs the same batch without probes and with the
backends ``cached`` and ``packed``, with padded rows and with padding removed, and compares with independent
forwards. A script of its own because the platform is chosen once per process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry

from rredcot_plugin.integrations.verl import wire
from rredcot_plugin.probes import forward_batched
from tests.unit.probe_models import random_ids, tiny_model

LENGTHS = [(9, 14), (5, 3), (7, 20), (4, 1)]  # prompt and response tokens of each row
SPECS = [
    [(9, [5, 6, 7], 1), (15, [5, 6, 7], 1), (23, [8], 0)],
    [],
    [(12, [4, 9, 9, 3], 2)],
    [(5, [11, 12], 0)],
]
TEMPERATURE = 0.7


def make_engine(path: Path, *, remove_padding: bool):
    model_config = HFModelConfig(
        path=str(path),
        load_tokenizer=False,
        use_remove_padding=remove_padding,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    engine_config = FSDPEngineConfig(
        strategy="fsdp2", use_torch_compile=False, mixed_precision={"param_dtype": "fp32"}, use_dynamic_bsz=False
    )
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=FSDPOptimizerConfig(lr=1e-4, total_training_steps=1),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def make_batch(rows: list[torch.Tensor], *, remove_padding: bool, backend: str | None) -> TensorDict:
    masks = [torch.ones(response, dtype=torch.int64) for _, response in LENGTHS]
    fields = {
        "input_ids": wire.jagged(rows),
        "position_ids": wire.jagged([torch.arange(len(row)) for row in rows]),
        "loss_mask": wire.jagged(masks),
        "response_mask": wire.jagged(masks),
        wire.PROBES: wire.jagged([wire.pack(specs) for specs in SPECS]),
    }
    data = TensorDict(fields, batch_size=len(rows))
    notes = {
        "calculate_entropy": True,
        "temperature": TEMPERATURE,
        "use_remove_padding": remove_padding,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 2,
    }
    tu.assign_non_tensor(data, **(notes | ({wire.BACKEND: backend} if backend else {})))
    return data


def run(engine, rows, *, remove_padding: bool, backend: str | None) -> dict[str, torch.Tensor]:
    with engine.eval_mode():
        out = engine.infer_batch(make_batch(rows, remove_padding=remove_padding, backend=backend))
    return out["model_output"]


def values(nested: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(nested.unbind()))


def check(path: Path, reference, rows: list[torch.Tensor], *, remove_padding: bool) -> None:
    engine = make_engine(path, remove_padding=remove_padding)
    plain = run(engine, rows, remove_padding=remove_padding, backend=None)
    assert wire.LOG_PROBS not in plain, "a batch that asks for nothing must get nothing"
    for backend in ("cached", "packed"):
        out = run(engine, rows, remove_padding=remove_padding, backend=backend)
        for name in ("log_probs", "entropy"):
            difference = float((values(plain[name]) - values(out[name])).abs().max())
            assert difference == 0.0 if backend == "cached" else difference < 1e-5, (backend, name, difference)
        for row, probes in enumerate(SPECS):
            got = out[wire.LOG_PROBS][row]
            assert got.shape == (1 + len(probes),)
            assert float(got[0]) >= 0
            expected = forward_batched(reference, [probes], [rows[row].tolist()], TEMPERATURE, device="cpu")
            error = float((got[1:] - expected).abs().max()) if probes else 0.0
            assert error < 1e-5, (remove_padding, backend, row, error)
        print(f"remove_padding={remove_padding} backend={backend}: equal")
    check_unsupported(engine, rows, remove_padding=remove_padding)


def check_unsupported(engine, rows, *, remove_padding: bool) -> None:
    """A model whose layers cannot be forked answers NaN and keeps verl's own numbers."""
    config = engine.module.config
    config.num_hidden_layers += 1  # as if one layer's attention did not go through the registry
    try:
        out = run(engine, rows, remove_padding=remove_padding, backend="cached")
    finally:
        config.num_hidden_layers -= 1
    probes = torch.cat([row[1:] for row in out[wire.LOG_PROBS].unbind()])
    assert torch.isnan(probes).all()
    assert torch.isfinite(values(out["log_probs"])).all()
    print(f"remove_padding={remove_padding} unsupported model: NaN, as agreed")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo", rank=0, world_size=1, init_method=f"file://{folder}/rendezvous")
    model = tiny_model("qwen3")
    model.save_pretrained(folder / "model")
    reference = AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="sdpa").eval()
    rows = [torch.tensor(random_ids(prompt + response, seed=i)) for i, (prompt, response) in enumerate(LENGTHS)]
    for remove_padding in (False, True):
        check(folder / "model", reference, rows, remove_padding=remove_padding)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
