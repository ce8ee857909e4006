"""Keep the keys and values of a trunk forward that runs anyway, without changing it.

The caller's forward may be of padded rows (B, T) or of packed rows (1, total); its outputs stay
bit-identical. No cache object is involved: a cache's sliding layers keep their window only, and probes need
keys from all over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from rredcot_plugin.probes.attention_hook import (
    AttentionCall,
    AttentionResult,
    check_angles,
    count_attention_layers,
    override_attention,
)
from rredcot_plugin.probes.errors import UnsupportedModelError

RowSpan = tuple[int, int, int]
"""(batch index, start, end): where the tokens of a row stand in the trunk forward's (B, T)."""


@dataclass(frozen=True)
class CapturedTrunk:
    """layer index -> (key, value), each (B, H_kv, T, D), rotary embedding applied, detached."""

    num_layers: int
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def check_complete(self) -> None:
        """Raise UnsupportedModelError unless every layer of the model was captured."""
        if len(self.layers) != self.num_layers:
            raise UnsupportedModelError(
                f"captured attention in {len(self.layers)} of {self.num_layers} layers: no forward ran "
                "inside capture_trunk, or the model's attention does not go through transformers' registry."
            )


@contextmanager
def capture_trunk(model: nn.Module) -> Iterator[CapturedTrunk]:
    """Yield an object that holds the trunk's keys and values once one forward of `model` ran inside.

    Memory: layers x 2 x H_kv x D x tokens, linear in the trunk; dropped with the object.

    Raises:
        UnsupportedModelError: layers that are not attention, a layer that runs twice inside, rotary angles that depend on
            the length of the trunk.
    """
    check_angles(model)
    captured = CapturedTrunk(count_attention_layers(model))

    def keep(call: AttentionCall) -> AttentionResult:
        if call.layer in captured.layers:
            raise UnsupportedModelError(f"attention layer {call.layer} ran twice inside one capture_trunk.")
        captured.layers[call.layer] = (call.key.detach(), call.value.detach())
        return call.run_original()

    with override_attention(model, keep):
        yield captured


def trunk_slices(kv: tuple[Tensor, Tensor], row_spans: Sequence[RowSpan]) -> list[tuple[Tensor, Tensor]]:
    """One layer's captured (key, value) as views (1, H_kv, tokens of the row, D), one pair a row."""
    key, value = kv
    return [(key[b : b + 1, :, start:end], value[b : b + 1, :, start:end]) for b, start, end in row_spans]
