"""`probe_log_probs`: log-probabilities of short continuations after truncated prefixes of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rredcot_plugin.probes.batched import forward_batched
from rredcot_plugin.probes.cached import forward_probes
from rredcot_plugin.probes.capture import capture_trunk
from rredcot_plugin.probes.errors import UnsupportedModelError
from rredcot_plugin.probes.layout import ProbeSpec, build_layout
from rredcot_plugin.probes.packed import forward_packed

BACKENDS = ("cached", "packed", "batched")
TokenIds = Sequence[int] | Tensor


@torch.no_grad()
def probe_log_probs(
    model: nn.Module,
    trace_ids: TokenIds,
    boundaries: TokenIds,
    probes: Sequence[TokenIds],
    backend: str = "cached",
    *,
    bridge: TokenIds = (),
    temperature: float = 1.0,
) -> Tensor:
    """log pi(probe | trace[:boundary], bridge) for every boundary and probe: (S, N) float32.

    out[s, n] = sum_i log softmax(logits / temperature)[probe_n[i]], the logits being those of an independent
    forward of [trace_ids[:boundaries[s]], bridge, probe_n[:i]]. Equal for all backends to 1e-5 in float32.
    (RREDCoT, arXiv 2606.06475: answer probabilities at segment boundaries.)

    Args:
        model: any transformers causal LM, in eval mode, full or sliding-window attention (`batched`: any).
        trace_ids: prompt and response, (T,), T >= 1.
        boundaries: S offsets into trace_ids, each in [0, T]; 0 needs a bridge.
        probes: N token-id lists, the same at every boundary, none empty.
        backend: `cached` (trace forward, then one call for all probes), `packed` (one call), `batched` (every
            probe an own row; slow, any model).
        bridge: tokens placed before each probe and not counted.
        temperature: greater than 0.

    Raises:
        ValueError: unknown backend, boundary out of range, ids that are not integers, empty trace or probe,
            boundary 0 without a bridge, temperature <= 0.
        UnsupportedModelError: attention that cannot be forked (`cached`, `packed`).
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(BACKENDS)}")
    trace = _int_list("trace_ids", trace_ids)
    lead = _int_list("bridge", bridge)
    answers = [_int_list(f"probes[{i}]", probe) for i, probe in enumerate(probes)]
    for name, ids in [("trace_ids", trace), *((f"probes[{i}]", ids) for i, ids in enumerate(answers))]:
        if not ids:
            raise ValueError(f"{name} is empty; expected at least one token")
    offsets = _int_list("boundaries", boundaries)
    specs: list[ProbeSpec] = [(offset, [*lead, *answer], len(lead)) for offset in offsets for answer in answers]
    shape = (len(offsets), len(answers))
    device = next(model.parameters()).device
    if not specs:
        return torch.zeros(shape, device=device)
    try:
        return _run(model, trace, specs, backend, temperature, device).view(shape)
    except UnsupportedModelError as error:
        way_out = 'Use backend="batched" for this model: it needs plain forwards only.'
        raise UnsupportedModelError(f"{error} {way_out}") from error


def _run(
    model: nn.Module,
    trace: list[int],
    specs: list[ProbeSpec],
    backend: str,
    temperature: float,
    device: torch.device,
) -> Tensor:
    if backend == "batched":
        return forward_batched(model, [specs], [trace], temperature, device=device)
    layout = build_layout([specs], [trace])
    ids = torch.tensor(trace, device=device)
    if backend == "packed":
        no_rows = torch.empty(0, dtype=torch.int64, device=device)
        return forward_packed(model, [ids], layout, temperature, trunk_rows=no_rows)[1]
    with capture_trunk(model) as captured:
        model(input_ids=ids[None], use_cache=False, logits_to_keep=1)
    return forward_probes(model, captured, layout, [(0, 0, len(trace))], temperature)


def _int_list(name: str, values: Any) -> list[int]:
    tensor = torch.as_tensor(values)
    if tensor.ndim != 1 or (tensor.numel() and (tensor.is_floating_point() or tensor.dtype == torch.bool)):
        raise ValueError(
            f"{name} has dtype {tensor.dtype} and shape {tuple(tensor.shape)}; expected a flat list of integers"
        )
    return [int(value) for value in tensor.tolist()]
