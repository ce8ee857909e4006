"""Nothing in a probes' pass makes the CPU wait for a GPU."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rredcot_plugin.probes import build_layout, capture_trunk, forward_packed, forward_probes
from rredcot_plugin.probes.transfer import send
from tests.unit.probe_models import tiny_model
from tests.unit.probed_rows import ROW_TOKENS


class Copies(TorchDispatchMode):
    """Counts the copies from the CPU to another device, and those of them that a GPU would make the CPU wait for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.sending, self.sent, self.waiting = False, 0, 0
        for name in ("cached", "fork_attention", "log_probs", "packed"):
            monkeypatch.setattr(import_module(f"rredcot_plugin.probes.{name}"), "send", self.send)

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.sending = True
        found = send(tensor, device)
        self.sending = False
        return found

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        given = [x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim()]
        if isinstance(found, torch.Tensor) and found.device.type == "meta" and "cpu" in given:
            self.sent += self.sending
            self.waiting += not self.sending
        return found


def test_no_probe_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # tensors on "meta" have no values: whatever would have to read one fails, where on a GPU it would wait
    with torch.device("meta"):
        model = tiny_model("qwen3")
        rows = [torch.tensor(tokens) for tokens in ROW_TOKENS]
        mask = torch.zeros((1, 1, 1, 1), dtype=torch.bool)
    layout = build_layout([[(3, [1, 2], 0), (5, [4, 5, 6], 1)], *[[] for _ in rows[1:]]], ROW_TOKENS)
    with capture_trunk(model) as captured:
        model(input_ids=rows[0][None], attention_mask=mask, use_cache=False)
    with Copies(monkeypatch) as copies:
        assert forward_probes(model, captured, layout, [(0, 0, len(ROW_TOKENS[0]))]).shape == (2,)
        assert forward_packed(model, rows, layout)[1].shape == (2,)
    assert copies.sent > 10 and copies.waiting == 0


def test_to_a_gpu_goes_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, seen = torch.arange(3), []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda own: seen.append("pinned") or own)
    monkeypatch.setattr(torch.Tensor, "to", lambda own, device, **how: seen.append((device.type, how)) or own)
    send(tensor, torch.device("cuda", 0))
    send(tensor, torch.device("cpu"))
    assert seen == ["pinned", ("cuda", {"non_blocking": True}), ("cpu", {})]
