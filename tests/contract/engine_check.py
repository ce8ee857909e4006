"""Run with ``VERL_PLATFORM=cpu python -m tests.contract.engine_check DIR [RANK WORLD]``: verl's FSDP2 engine.

Builds the engine that verl's registry gives for this platform, runs the same batch plain, with probes
(``cached`` and ``packed``) and with attribution, with padded rows and with padding removed, and compares with
independent forwards. With RANK and WORLD it is one of several processes that share the model; their batches
differ, and only rank 0's has answers to attribute. A script of its own because the platform is chosen once per
process.
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

from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.probes import attention_attribution, forward_batched, gradient_attribution
from rredcot_plugin.probes.layout import pack
from tests.unit.probe_models import random_ids, tiny_model

LENGTHS = [(9, 14), (5, 3), (7, 20), (4, 1)]  # prompt and response tokens of each row
SPECS = [
    [(9, [5, 6, 7], 1), (15, [5, 6, 7], 1), (23, [8], 0)],
    [],
    [(12, [4, 9, 9, 3], 2)],
    [(5, [11, 12], 0)],
]
ANSWER_STARTS = [18, -1, 25, 4]  # from the start of the prompt; none in row 1, all of the response in row 3
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


def make_batch(
    rows: list[torch.Tensor],
    *,
    remove_padding: bool,
    backend: str | None,
    attribution: str | None,
    starts: list[int],
    squares: bool = False,
) -> TensorDict:
    masks = [torch.ones(response, dtype=torch.int64) for _, response in LENGTHS]
    fields = {
        "input_ids": transfer_fields.jagged(rows),
        "position_ids": transfer_fields.jagged([torch.arange(len(row)) for row in rows]),
        "loss_mask": transfer_fields.jagged(masks),
        "response_mask": transfer_fields.jagged(masks),
        transfer_fields.PROBES: transfer_fields.jagged([pack(specs) for specs in SPECS]),
        transfer_fields.ANSWER_START: transfer_fields.pack_starts(starts),
    }
    data = TensorDict(fields, batch_size=len(rows))
    notes = {
        "calculate_entropy": True,
        "temperature": TEMPERATURE,
        "use_remove_padding": remove_padding,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 2,
    }
    asked = {
        transfer_fields.BACKEND: backend,
        transfer_fields.ATTRIBUTION: attribution,
        transfer_fields.SQUARES: squares,
    }
    tu.assign_non_tensor(data, **notes, **{key: value for key, value in asked.items() if value})
    return data


def run(
    engine,
    rows,
    *,
    remove_padding: bool,
    backend: str | None,
    attribution: str | None = None,
    starts: list[int] = ANSWER_STARTS,
    squares: bool = False,
) -> dict[str, torch.Tensor]:
    batch = make_batch(
        rows,
        remove_padding=remove_padding,
        backend=backend,
        attribution=attribution,
        starts=starts,
        squares=squares,
    )
    with engine.eval_mode():
        out = engine.infer_batch(batch)
    return out["model_output"]


def values(nested: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(nested.unbind()))


def check(path: Path, reference, rows: list[torch.Tensor], *, remove_padding: bool) -> None:
    engine = make_engine(path, remove_padding=remove_padding)
    plain = run(engine, rows, remove_padding=remove_padding, backend=None)
    assert set(plain) == {"log_probs", "entropy"}, "a batch that asks for nothing must get nothing"
    for backend in ("cached", "packed"):
        out = run(engine, rows, remove_padding=remove_padding, backend=backend)
        for name in ("log_probs", "entropy"):
            difference = float((values(plain[name]) - values(out[name])).abs().max())
            assert difference == 0.0 if backend == "cached" else difference < 1e-5, (backend, name, difference)
        for row, probes in enumerate(SPECS):
            got = out[transfer_fields.LOG_PROBS][row]
            assert got.shape == (1 + len(probes),)
            assert float(got[0]) >= 0
            expected = forward_batched(reference, [probes], [rows[row].tolist()], TEMPERATURE, device="cpu")
            error = float((got[1:] - expected).abs().max()) if probes else 0.0
            assert error < 1e-5, (remove_padding, backend, row, error)
        print(f"remove_padding={remove_padding} backend={backend}: equal")
    check_attribution(engine, reference, rows, plain, remove_padding=remove_padding)
    check_squares(engine, reference, rows, plain, remove_padding=remove_padding)
    check_unsupported(engine, rows, remove_padding=remove_padding)
    check_precision(engine, rows, remove_padding=remove_padding)


def check_precision(engine, rows, *, remove_padding: bool) -> None:
    """``packed`` makes verl's outputs under autocast, as verl does: on a GPU that decides how exactly they are made."""
    own, seen = engine.prepare_model_outputs, []

    def watched(**given):
        seen.append(torch.is_autocast_enabled("cpu"))
        return own(**given)

    engine._autocast_dtype, engine.prepare_model_outputs = torch.bfloat16, watched
    try:
        for backend in (None, "cached", "packed"):
            run(engine, rows, remove_padding=remove_padding, backend=backend)
    finally:
        engine._autocast_dtype = torch.float32
        del engine.prepare_model_outputs
    assert len(seen) == 6 and all(seen), seen
    print(f"remove_padding={remove_padding} bfloat16: under autocast")


def check_squares(engine, reference, rows, plain, *, remove_padding: bool) -> None:
    """Σ π² of every token of the response, alone, and beside probes and attribution."""
    expected = []
    for row, (prompt, _) in zip(rows, LENGTHS, strict=True):
        with torch.no_grad():
            logits = reference(input_ids=row[None]).logits[0]
        expected.append((logits / TEMPERATURE).softmax(-1).square().sum(-1)[prompt - 1 : -1])
    for backend, attribution in ((None, None), ("cached", None), ("packed", None), ("cached", "gradient")):
        out = run(
            engine,
            rows,
            remove_padding=remove_padding,
            backend=backend,
            attribution=attribution,
            squares=True,
        )
        for name in ("log_probs", "entropy"):
            difference = float((values(plain[name]) - values(out[name])).abs().max())
            assert difference < 1e-5 if backend == "packed" else difference == 0.0, (backend, name, difference)
        for got, wanted in zip(out[transfer_fields.SUM_PI_SQUARED].unbind(), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    print(f"remove_padding={remove_padding} sum of squares: as softmax says")


def check_attribution(engine, reference, rows, plain, *, remove_padding: bool, starts=ANSWER_STARTS) -> None:
    """Attention and gradient, each alone and together, with and without probes beside them."""
    offsets = transfer_fields.unpack_starts(transfer_fields.pack_starts(starts), [len(row) for row in rows])
    expected = {
        "attention": attention_attribution(reference, rows, offsets),
        "gradient": gradient_attribution(reference, rows, offsets, TEMPERATURE),
    }
    for kinds in ("attention", "gradient", "attention,gradient"):
        for backend in (None, "cached", "packed"):
            out = run(
                engine, rows, remove_padding=remove_padding, backend=backend, attribution=kinds, starts=starts
            )
            assert (transfer_fields.LOG_PROBS in out) == (backend is not None)
            for name in ("log_probs", "entropy"):
                difference = float((values(plain[name]) - values(out[name])).abs().max())
                assert difference < 1e-5 if backend == "packed" else difference == 0.0, (kinds, backend, name)
            for kind, field in transfer_fields.SCORES.items():
                assert (field in out) == (kind in kinds.split(","))
                for row, (prompt, response) in enumerate(LENGTHS if field in out else []):
                    got = out[field][row]
                    assert got.shape == (response,)
                    torch.testing.assert_close(got, expected[kind][row][prompt:], rtol=1e-4, atol=1e-5)
    assert float(expected["gradient"][0][LENGTHS[0][0] :].sum()) > 0 or starts != ANSWER_STARTS
    assert all(parameter.grad is None for parameter in engine.module.parameters())
    assert not any(module.training for module in engine.module.modules())
    print(f"remove_padding={remove_padding} attribution: the same")


def check_unsupported(engine, rows, *, remove_padding: bool) -> None:
    """A model whose layers cannot be forked answers NaN and keeps verl's own numbers."""
    config = engine.module.config
    config.num_hidden_layers += 1  # as if one layer's attention did not go through the registry
    try:
        out = run(engine, rows, remove_padding=remove_padding, backend="cached", attribution="attention,gradient")
    finally:
        config.num_hidden_layers -= 1
    for field in transfer_fields.SCORES.values():
        assert [len(row) for row in out[field].unbind()] == [response for _, response in LENGTHS]
        assert torch.isnan(values(out[field])).all()
    probes = torch.cat([row[1:] for row in out[transfer_fields.LOG_PROBS].unbind()])
    assert torch.isnan(probes).all()
    assert torch.isfinite(values(out["log_probs"])).all()
    print(f"remove_padding={remove_padding} unsupported model: NaN, as agreed")


def main(folder: Path, rank: int = 0, world: int = 1) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo", rank=rank, world_size=world, init_method=f"file://{folder}/rendezvous")
    if rank == 0:
        tiny_model("qwen3").save_pretrained(folder / "model")
    dist.barrier()
    reference = AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="sdpa").eval()
    seeds = [i + 100 * rank for i in range(len(LENGTHS))]
    rows = [torch.tensor(random_ids(sum(length), seed=seed)) for length, seed in zip(LENGTHS, seeds, strict=True)]
    for remove_padding in (False, True):
        if world == 1:
            check(folder / "model", reference, rows, remove_padding=remove_padding)
            continue
        engine = make_engine(folder / "model", remove_padding=remove_padding)
        plain = run(engine, rows, remove_padding=remove_padding, backend=None)
        starts = ANSWER_STARTS if rank == 0 else [-1] * len(rows)
        check_attribution(engine, reference, rows, plain, remove_padding=remove_padding, starts=starts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
