"""Runs after ``verl.workers.engine``: FSDP engines whose log-prob pass also answers probes, attributes, and sums π².

The classes are verl's own with two methods extended, registered for the vendor of each device; verl prefers a
vendor's entry, so no entry of verl is replaced. A batch that asks for none of this goes through untouched.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name, get_torch_device
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.utils import detach_tree

from rredcot_plugin.integrations.verl import media, transfer_fields
from rredcot_plugin.probes import (
    UnsupportedModelError,
    build_layout,
    capture_trunk,
    forward_packed,
    forward_probes,
)
from rredcot_plugin.probes.attention_scores import attention_attribution, capture_attention
from rredcot_plugin.probes.capture import RowSpan
from rredcot_plugin.probes.gradient_scores import gradient_attribution
from rredcot_plugin.probes.layout import ProbeLayout, ProbeSpec, row_spans_of, unpack
from rredcot_plugin.probes.squares import sum_pi_squared

logger = logging.getLogger(__name__)

VENDORS = {"cuda": ("nvidia", "amd"), "npu": ("huawei",), "cpu": ("cpu",)}
BACKENDS = ("fsdp", "fsdp2")


class ProbeEngineMixin:
    """Adds ``rredcot_probe_log_probs`` to the model outputs of a forward-only pass that asks for it.

    ``cached``: verl's own forward with keys and values kept, then one call for the probes, so verl's
    log-probs and entropies stay bit-identical. ``packed``: one call for both. A model whose attention cannot
    be forked gets NaN for every probe, which makes the trainer fall back to ``batched``.
    """

    def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> tuple[Any, dict]:
        backend = tu.get_non_tensor_data(data=micro_batch, key=transfer_fields.BACKEND, default=None)
        if backend is None or not forward_only:
            return super().forward_step(micro_batch, loss_function, forward_only)  # type: ignore[misc]
        micro_batch = micro_batch.to(get_device_id())
        specs = [unpack(row) for row in micro_batch[transfer_fields.PROBES].unbind()]
        try:
            step = self._packed_step if backend == "packed" else self._cached_step
            loss, output, log_probs, seconds = step(micro_batch, loss_function, specs)
        except UnsupportedModelError as error:
            logger.warning("rredcot: probes cannot run in the log-prob pass of this model: %s", error)
            loss, output = super().forward_step(micro_batch, loss_function, forward_only)  # type: ignore[misc]
            log_probs, seconds = torch.full((sum(map(len, specs)),), torch.nan), 0.0
        output["model_output"][transfer_fields.LOG_PROBS] = _per_row(log_probs, specs, seconds)
        return loss, output

    def _cached_step(self, micro_batch: Any, loss_function: Any, specs: list[list[ProbeSpec]]) -> tuple:
        rows, layout, temperature = _layout(micro_batch, specs)
        module: torch.nn.Module = self.module  # type: ignore[attr-defined]
        with capture_trunk(module) as captured:
            loss, output = super().forward_step(micro_batch, loss_function, True)  # type: ignore[misc]
        start = _now()
        with self._autocast():
            log_probs = forward_probes(module, captured, layout, _spans(micro_batch, rows), temperature)
        return loss, output, log_probs, _now() - start

    def _packed_step(self, micro_batch: Any, loss_function: Any, specs: list[list[ProbeSpec]]) -> tuple:
        _check_text(micro_batch)
        rows, layout, temperature = _layout(micro_batch, specs)
        _, output_args = self.prepare_model_inputs(micro_batch=micro_batch)  # type: ignore[attr-defined]
        with self._autocast():
            logits, log_probs = forward_packed(self.module, rows, layout, temperature)  # type: ignore[attr-defined]
            if tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True):
                logits = torch.nn.functional.pad(logits, (0, 0, 0, output_args["pad_size"]))[None]
            else:
                logits = torch.nn.utils.rnn.pad_sequence(
                    logits.split([len(row) for row in rows]), batch_first=True
                )
            model_output = self.prepare_model_outputs(  # type: ignore[attr-defined]
                output=SimpleNamespace(logits=logits),
                output_args=output_args,
                micro_batch=micro_batch,
                logits_processor_func=loss_function,
            )
        loss = torch.tensor(1.0, device=get_device_name())
        return loss, {"model_output": detach_tree(model_output), "loss": 1.0, "metrics": {}}, log_probs, 0.0

    def _autocast(self) -> Any:
        """The precision verl runs its own forward in."""
        dtype = getattr(self, "_autocast_dtype", torch.bfloat16)
        return nullcontext() if dtype == torch.float32 else torch.autocast(get_device_name(), dtype=dtype)


class AttributionEngineMixin:
    """Adds ``rredcot_attention`` and ``rredcot_gradient`` to the model outputs of a pass that asks for them.

    Stands in front of ``ProbeEngineMixin``, so both can run in one pass. Attention is read while verl's own
    forward runs, or in a forward of its own with ``packed`` probes; the gradient takes one more forward and a
    backward. No bit of the other outputs changes, parameters get no gradient, and every rank makes the same
    calls, whatever its rows. Where the model cannot be read, every score is NaN.
    """

    def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> tuple[Any, dict]:
        wanted = tu.get_non_tensor_data(data=micro_batch, key=transfer_fields.ATTRIBUTION, default=None)
        kinds = transfer_fields.attributions(wanted) if forward_only else []
        if not kinds:
            return super().forward_step(micro_batch, loss_function, forward_only)  # type: ignore[misc]
        micro_batch = micro_batch.to(get_device_id())
        scores = {}
        if "attention" in kinds:
            loss, output, scores["attention"] = self._attention_step(micro_batch, loss_function)
        else:
            loss, output = super().forward_step(micro_batch, loss_function, True)  # type: ignore[misc]
        if "gradient" in kinds:
            scores["gradient"] = self._attribute("gradient", micro_batch)
        for kind, found in scores.items():
            output["model_output"][transfer_fields.SCORES[kind]] = _of_response(found, micro_batch)
        return loss, output

    def _attention_step(self, micro_batch: Any, loss_function: Any) -> tuple[Any, dict, list[torch.Tensor] | None]:
        if tu.get_non_tensor_data(data=micro_batch, key=transfer_fields.BACKEND, default=None) == "packed":
            # attention does not run in the model's own function there, so there is nothing to watch
            loss, output = super().forward_step(micro_batch, loss_function, True)  # type: ignore[misc]
            return loss, output, self._attribute("attention", micro_batch)
        try:
            rows, starts = _answers(micro_batch)
            with capture_attention(self.module, _spans(micro_batch, rows), starts) as captured:  # type: ignore[attr-defined]
                loss, output = super().forward_step(micro_batch, loss_function, True)  # type: ignore[misc]
            return loss, output, captured.scores()
        except UnsupportedModelError as error:
            _warn_unread(error)
        return *super().forward_step(micro_batch, loss_function, True), None  # type: ignore[misc]

    def _attribute(self, kind: str, micro_batch: Any) -> list[torch.Tensor] | None:
        """Scores from forwards of their own; None where the model cannot be read."""
        module: torch.nn.Module = self.module  # type: ignore[attr-defined]
        try:
            _check_text(micro_batch)
            rows, starts = _answers(micro_batch)
            with self._autocast():  # type: ignore[attr-defined]
                if kind == "attention":
                    return attention_attribution(module, rows, starts)
                return gradient_attribution(module, rows, starts, _temperature(micro_batch))
        except UnsupportedModelError as error:
            _warn_unread(error)
        return None


class SquaresEngineMixin:
    """Adds ``rredcot_sum_pi_squared`` to the model outputs of a log-prob pass that asks for it.

    Computed from the logits that verl's own outputs come from, before it looks at them, at the temperature of the
    pass. verl's ``calculate_sum_pi_squared`` does the same in the precision of the logits (off by up to a sixth in
    bfloat16), for prompts too, with two more tensors as large as all logits, in six times the time
    (benchmarks/sum_pi_squared.py).
    """

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> dict:
        asked = tu.get_non_tensor_data(data=micro_batch, key=transfer_fields.SQUARES, default=False)
        squares = {transfer_fields.SUM_PI_SQUARED: _squares(output.logits, micro_batch)} if asked else {}
        found = super().prepare_model_outputs(  # type: ignore[misc]
            output=output,
            output_args=output_args,
            micro_batch=micro_batch,
            logits_processor_func=logits_processor_func,
        )
        return {**found, **squares}


@torch.no_grad()
def _squares(logits: torch.Tensor, micro_batch: Any) -> torch.Tensor:
    """Jagged rows of Σ_v π_v², one for each token of the response; its distribution stands one row before it."""
    logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
    lengths = [len(row) for row in micro_batch["input_ids"].unbind()]
    responses = [len(row) for row in micro_batch["response_mask"].unbind()]
    temperatures = torch.as_tensor(micro_batch["temperature"]).float().flatten().expand(len(lengths))
    packed = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
    spans = row_spans_of(lengths) if packed else [(i, 0, n) for i, n in enumerate(lengths)]
    found = []
    for (row, _, end), response, temperature in zip(spans, responses, temperatures, strict=True):
        own = logits[row, end - 1 - response : end - 1]
        found.append(sum_pi_squared(own, temperature.to(own.device).expand(len(own))))
    return transfer_fields.jagged(found)


def _warn_unread(error: UnsupportedModelError) -> None:
    logger.warning(
        "rredcot: this model's attention or gradient cannot be read, so nothing is attributed: %s", error
    )


def _answers(micro_batch: Any) -> tuple[list[torch.Tensor], list[int]]:
    """Rows of tokens, and where the answer of each begins."""
    _check_positions(micro_batch)
    rows = list(micro_batch["input_ids"].unbind())
    return rows, transfer_fields.unpack_starts(
        micro_batch[transfer_fields.ANSWER_START], [len(row) for row in rows]
    )


def _of_response(scores: list[torch.Tensor] | None, micro_batch: Any) -> torch.Tensor:
    """Jagged rows of the response's scores; NaN where there are none."""
    lengths = [len(row) for row in micro_batch["response_mask"].unbind()]
    if scores is None:
        device = micro_batch["input_ids"].device
        return transfer_fields.jagged([torch.full((length,), torch.nan, device=device) for length in lengths])
    return transfer_fields.jagged([row[len(row) - length :] for row, length in zip(scores, lengths, strict=True)])


def _spans(micro_batch: Any, rows: list[torch.Tensor]) -> list[RowSpan]:
    """Where the rows stand in verl's own forward."""
    lengths = [len(row) for row in rows]
    packed = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
    return row_spans_of(lengths) if packed else [(i, 0, n) for i, n in enumerate(lengths)]


def _layout(micro_batch: Any, specs: list[list[ProbeSpec]]) -> tuple[list[torch.Tensor], ProbeLayout, float]:
    """Rows of tokens, the probes laid out after them, and the temperature.

    Raises:
        UnsupportedModelError: rows whose positions have several axes, or temperatures that differ by row.
    """
    _check_positions(micro_batch)
    rows = list(micro_batch["input_ids"].unbind())
    return rows, build_layout(specs, [row.tolist() for row in rows]), _temperature(micro_batch)


def _check_positions(micro_batch: Any) -> None:
    if micro_batch["position_ids"].dim() == 3:
        raise UnsupportedModelError("position ids have several axes (a multi-modal model)")


def _check_text(micro_batch: Any) -> None:
    """A forward of tokens alone sees all that the rows have. The driver asks for none where one row has more
    (`media.refuse_media`), so that all ranks make the same calls."""
    if any(tu.unwrap_non_tensor_data(entry) for entry in micro_batch.get(media.FIELD, [])):
        raise UnsupportedModelError("rows have images, video or sound, which a forward of our own does not see")


def _temperature(micro_batch: Any) -> float:
    temperature = torch.as_tensor(micro_batch["temperature"]).float().flatten()
    if bool((temperature != temperature[0]).any()):
        raise UnsupportedModelError("rows differ in temperature")
    return float(temperature[0])


def _per_row(log_probs: torch.Tensor, specs: list[list[ProbeSpec]], seconds: float) -> torch.Tensor:
    """Jagged rows ``[seconds share, log-probs of the row's probes]``."""
    share = log_probs.new_full((1,), seconds / max(1, len(specs)))
    parts = log_probs.float().split([len(row) for row in specs])
    return transfer_fields.jagged([torch.cat([share, part]) for part in parts])


def _now() -> float:
    get_torch_device().synchronize()  # kernels run asynchronously
    return time.perf_counter()


def register() -> None:
    """Register a probe engine for every FSDP language-model engine that verl (or its CPU platform) has."""
    for backend in BACKENDS:
        registered = EngineRegistry._engines.get("language_model", {}).get(backend, {})
        for device, engine in list(registered.items()):
            if not isinstance(device, str) or issubclass(engine, ProbeEngineMixin):
                continue
            taken = {key[1] for key in registered if isinstance(key, tuple) and key[0] == device}
            vendors = [vendor for vendor in VENDORS.get(device, ()) if vendor not in taken]
            bases = (AttributionEngineMixin, ProbeEngineMixin, SquaresEngineMixin, engine)
            probing = type(f"RRedCoT{engine.__name__}", bases, {"__module__": __name__})
            globals()[probing.__name__] = probing  # findable by name
            if vendors:
                EngineRegistry.register("language_model", backend, device, vendors)(probing)


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    # the CPU engine must be there to be wrapped, whichever plugin verl imported first
    from rredcot_plugin.integrations.verl_cpu import engine as _cpu_engine  # noqa: F401

register()
