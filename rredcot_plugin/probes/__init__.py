"""Probes: short continuations placed after truncated prefixes of a trace, scored in the trace's own pass.

Needs torch; transformers is imported only when a model is used. Around an own trunk forward an engine does:

    layout = build_layout(rows, row_tokens)
    with capture_trunk(model) as captured:
        output = model(...)                       # unchanged: padded (B, T) or packed (1, total)
    log_pi = forward_probes(model, captured, layout, row_spans, temperature)
"""

from rredcot_plugin.probes.api import BACKENDS, probe_log_probs
from rredcot_plugin.probes.attention_scores import attention_attribution, capture_attention
from rredcot_plugin.probes.batched import forward_batched
from rredcot_plugin.probes.cached import forward_probes
from rredcot_plugin.probes.capture import CapturedTrunk, capture_trunk, trunk_slices
from rredcot_plugin.probes.errors import UnsupportedModelError
from rredcot_plugin.probes.gradient_scores import gradient_attribution
from rredcot_plugin.probes.layout import ProbeLayout, build_layout
from rredcot_plugin.probes.packed import forward_packed

__all__ = [
    "BACKENDS",
    "CapturedTrunk",
    "ProbeLayout",
    "UnsupportedModelError",
    "attention_attribution",
    "build_layout",
    "capture_attention",
    "capture_trunk",
    "forward_batched",
    "forward_packed",
    "forward_probes",
    "gradient_attribution",
    "probe_log_probs",
    "trunk_slices",
]
