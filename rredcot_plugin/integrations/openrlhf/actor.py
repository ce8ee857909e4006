"""Runs after ``openrlhf.trainer.ray.ppo_actor``: a policy actor whose log-prob pass also answers probes.

The class is OpenRLHF's with one method extended; a pass that is asked for no probes goes through untouched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import openrlhf.trainer.ray.ppo_actor as host
import ray
import torch
from transformers.modeling_outputs import CausalLMOutput

from rredcot_plugin.integrations.openrlhf.probe_rows import answer_as_rows
from rredcot_plugin.integrations.openrlhf.signals import ring_signals, signals
from rredcot_plugin.probes import (
    UnsupportedModelError,
    build_layout,
    capture_trunk,
    forward_packed,
    forward_probes,
)
from rredcot_plugin.probes.capture import RowSpan
from rredcot_plugin.probes.layout import ProbeSpec, row_spans_of, unpack

logger = logging.getLogger(__name__)

Base: Any = host.PolicyModelActor.__ray_metadata__.modified_class


class RRedCoTPolicyActor(Base):
    """``forward`` with ``probes``, a packed vector per row (``probes.layout.pack``), returns a dict."""

    _forks = True
    """False once the attention of the model has turned out not to be forkable: one warning, and no pass in vain any more."""

    @torch.no_grad()
    def forward(
        self,
        sequences: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        packed_seq_lens: Any = None,
        mm_train_inputs_list: Any = None,
        probes: list[torch.Tensor] | None = None,
        probe_backend: str = "cached",
        squares: bool = False,
    ) -> Any:
        """OpenRLHF's log-probs (B, T−1); with ``probes`` a dict with them under ``log_probs``, and beside them

        ``answers``, the log-probs of each row's probes in nats, in their order; ``seconds`` that probes took beside the pass;
        ``entropies`` in nats and, with ``squares``, ``sum_pi_squared`` of the distributions that actions were drawn from,
        (B, T−1), 0 where there is no action.
        """
        given = (sequences, action_mask, attention_mask, packed_seq_lens, mm_train_inputs_list)
        if probes is None:
            return super().forward(*given)
        assert attention_mask is not None and action_mask is not None
        specs = [unpack(vector) for vector in probes]
        lengths = attention_mask.sum(1).tolist()
        rows = [sequences[row, :length].tolist() for row, length in enumerate(lengths)]
        spans = row_spans_of(lengths) if self.actor.packing_samples else [(i, 0, n) for i, n in enumerate(lengths)]
        in_pass = {"cached": self._cached, "packed": self._packed}.get(probe_backend)
        if not self._forks or self._group is not None or self.strategy.ds_tensor_parallel_size > 1:
            in_pass = None  # in the last two a rank has a share of the rows, or of each layer
        if self._group is None:
            read = partial(signals, spans=spans, action_mask=action_mask, squares=squares)
        else:
            read = partial(
                ring_signals,
                attention_mask=attention_mask,
                action_mask=action_mask,
                group=self._group,
                squares=squares,
            )
        asked = ProbedPass(given, specs, rows, spans, read)
        found = in_pass and self._unless_unsupported(in_pass, asked)
        log_probs, answers, seconds, of_tokens = found or self._batched(asked)
        return {
            "log_probs": log_probs,
            "answers": list(answers.float().cpu().split([len(own) for own in specs])),
            "seconds": seconds,
            **of_tokens,
        }

    @property
    def _group(self) -> Any:
        """The ranks of a ring, over which rows are cut; None where they are whole."""
        return self.strategy.ring_attn_group

    def _unless_unsupported(self, run: Callable[[ProbedPass], Answered], asked: ProbedPass) -> Answered | None:
        """What ``run`` finds; None where the attention of the model cannot be forked."""
        try:
            return run(asked)
        except UnsupportedModelError as error:
            logger.warning("rredcot: probes of this model run as rows of their own (batched): %s", error)
            self._forks = False
        return None

    def _cached(self, asked: ProbedPass) -> Answered:
        """The pass with keys and values kept, then one call for the probes."""
        module = self.actor.model.module
        with capture_trunk(module) as captured, _kept_logits(module) as kept:
            log_probs = super().forward(*asked.given)
        of_tokens, start = _taken(kept, asked.read), _now()
        with _evaluated(self.actor):
            layout = build_layout(asked.specs, asked.rows)
            answers = forward_probes(module, captured, layout, asked.spans, self.actor.temperature)
        return log_probs, answers, _now() - start, of_tokens

    def _packed(self, asked: ProbedPass) -> Answered:
        """One call of the model for rows and probes, in the place of the one that OpenRLHF's pass makes."""
        module, width = self.actor.model.module, asked.given[0].shape[1]
        device, layout = next(module.parameters()).device, build_layout(asked.specs, asked.rows)
        tokens = [torch.tensor(row, device=device) for row in asked.rows]
        found: list[torch.Tensor] = []

        def forward(**_: Any) -> CausalLMOutput:
            logits, answers = forward_packed(module, tokens, layout, self.actor.temperature)
            found.append(answers)
            if self.actor.packing_samples:
                return CausalLMOutput(logits=logits[None])  # type: ignore[arg-type]
            padded = torch.nn.utils.rnn.pad_sequence(
                logits.split([len(row) for row in asked.rows]), batch_first=True
            )
            padding = (0, 0, 0, width - padded.shape[1])
            return CausalLMOutput(logits=torch.nn.functional.pad(padded, padding))  # type: ignore[arg-type]

        with _kept_logits(module) as kept, _in_place_of_forward(module, forward):
            log_probs = super().forward(*asked.given)
        return log_probs, found[0], 0.0, _taken(kept, asked.read)

    def _batched(self, asked: ProbedPass) -> Answered:
        """The pass, then every probe as a row of OpenRLHF's own forward."""
        module, sequences = self.actor.model.module, asked.given[0]
        with _kept_logits(module) as kept:
            log_probs = super().forward(*asked.given)
        of_tokens, start = _taken(kept, asked.read), _now()
        with _evaluated(self.actor):
            answers = answer_as_rows(
                self.actor,
                asked.specs,
                asked.rows,
                group=self._group,
                max_tokens=sequences.numel(),
                in_step=self.strategy.stage == 3,
                device=next(module.parameters()).device,
            )
        return log_probs, answers, _now() - start, of_tokens


@dataclass(frozen=True)
class ProbedPass:
    """A pass of OpenRLHF's, with the arguments ``given``; probes and tokens of each row, and where it stands in the logits; and
    what is to be ``read`` of these."""

    given: tuple
    specs: list[list[ProbeSpec]]
    rows: list[list[int]]
    spans: Sequence[RowSpan]
    read: Callable[[torch.Tensor], dict[str, torch.Tensor]]


Answered = tuple[torch.Tensor, torch.Tensor, float, dict[str, torch.Tensor]]
"""Log-probs of the pass and of the probes, the seconds of the latter, and what was read of the pass's logits."""


@contextmanager
def _kept_logits(module: Any) -> Iterator[SimpleNamespace]:
    """What the model returns last while this is open, which OpenRLHF scales by the temperature in its place."""
    kept = SimpleNamespace(output=None)
    handle = module.register_forward_hook(lambda module, inputs, output: setattr(kept, "output", output))
    try:
        yield kept
    finally:
        handle.remove()


def _taken(
    kept: SimpleNamespace, read: Callable[[torch.Tensor], dict[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """What is read of the kept logits, which are let go: probes need their memory."""
    output, kept.output = kept.output, None
    return read(output.logits)


@contextmanager
def _in_place_of_forward(module: Any, once: Callable[..., Any]) -> Iterator[None]:
    """While this is open the module's next call is ``once``, in which its own forward is back."""
    own = module.forward

    def forward(*_: Any, **given: Any) -> Any:
        module.forward = own
        return once(**given)

    module.forward = forward
    try:
        yield
    finally:
        module.forward = own


@contextmanager
def _evaluated(actor: Any) -> Iterator[None]:
    """While this is open the actor is in evaluation mode; OpenRLHF leaves it in training mode after its own pass."""
    actor.eval()
    try:
        yield
    finally:
        actor.train()


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


host.PolicyModelActor = ray.remote(num_gpus=1)(RRedCoTPolicyActor)
