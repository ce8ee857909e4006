"""Are the probes' log-probs right on this device? Against independent float32 forwards of [prefix, probe]."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gpu.passes import Shape, Work, build_model, make_passes, work_at
from rredcot_plugin.probes.log_probs import selected_log_probs

FLOAT32_LIMIT = 2e-3
"""Largest error of a probe's summed log-prob in float32: rounding of 36 layers, far below a wrong mask's."""
BFLOAT16_FACTOR, BFLOAT16_SLACK = 2.0, 0.05
"""In bfloat16 a probe may be off by so many times what independent bfloat16 forwards are off by, plus slack."""


@torch.no_grad()
def check_backends(
    shape: Shape, device: torch.device, names: list[str], tokens: int, probe_tokens: int
) -> dict[str, Any]:
    """Largest absolute errors of summed log-probs by dtype and pass, their limits, and which are beyond them.

    Probes stand after 1, 2, 4, ... tokens, up to the whole trace: after few tokens each one counts, so that a
    limit that is off by one shows.

    A pass that the device or the compiler refuses (RuntimeError) is noted by its message, and counts as wrong.
    """
    model = build_model(shape, device)
    boundaries = [2**i for i in range(tokens.bit_length()) if 2**i < tokens] + [tokens]
    work = work_at(shape.vocab, tokens, boundaries, probe_tokens, device)
    exact_model = copy.deepcopy(model).float()
    exact = independent_log_probs(exact_model, work)
    yardstick = largest_error(independent_log_probs(model, work), exact)
    limits = {"float32": FLOAT32_LIMIT, "bfloat16": BFLOAT16_FACTOR * yardstick + BFLOAT16_SLACK}
    errors = {
        "float32": pass_errors(exact_model, work, names, exact),
        "bfloat16": pass_errors(model, work, names, exact),
    }
    wrong = [
        f"{name} in {dtype}: {error}"
        for dtype, found in errors.items()
        for name, error in found.items()
        if isinstance(error, str) or not error <= limits[dtype]
    ]
    return {"errors": errors, "limits": limits, "independent_bfloat16": yardstick, "wrong": wrong}


def independent_log_probs(model: nn.Module, work: Work) -> Tensor:
    """Sum of the log-probs of every probe, each from a plain forward of its own: (K,) float32."""
    sums = []
    for boundary, ids, _ in work.specs:
        row = torch.tensor([*work.trace[:boundary], *ids], device=work.ids.device)
        logits = model(input_ids=row[None], use_cache=False, logits_to_keep=len(ids) + 1).logits[0, :-1]
        sums.append(selected_log_probs(logits, row[boundary:]).sum())
    return torch.stack(sums)


def pass_errors(model: nn.Module, work: Work, names: list[str], exact: Tensor) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for name, run in make_passes(model, work, names).items():
        try:
            _, log_probs = run()
        except RuntimeError as error:
            found[name] = f"failed: {str(error).strip().splitlines()[0]}"
            continue
        assert log_probs is not None
        found[name] = largest_error(log_probs, exact)
    return found


def largest_error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).abs().max())
