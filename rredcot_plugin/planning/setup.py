"""What a plan is asked for: the cluster, the batch, the probes, and what is assumed about speeds."""

from __future__ import annotations

from dataclasses import dataclass

from rredcot_plugin.choices import AUTO_TOKENS
from rredcot_plugin.registry import check_count, check_number, nearest

BACKENDS = ("cached", "packed", "batched")
ESTIMATORS = ("support", "confidence", "monte_carlo", "none")

SHARED_FROM = AUTO_TOKENS
"""Response tokens of a step over which ``credit_workers: auto`` shares it (`choices.choose_workers`)."""


@dataclass(frozen=True)
class Setup:
    """One training step; every trace has the mean lengths given here.

    ``tflops`` and ``gpu_gb`` belong to one GPU; ``mfu`` is the share of ``tflops`` that forward and backward reach;
    ``decode_rate`` is in tokens per second and GPU; ``transfer_gb`` what one process moves through TransferQueue, in GB/s;
    ``credit_workers`` the processes that share the driver's part of a big step, 0 for none. ``recompute``: layers are
    computed again in the backward, as verl does by default.

    Raises:
        ValueError: a value that is not allowed, naming the option, the value and what is.
    """

    gpus: int = 8
    tflops: float = 989.0
    gpu_gb: float = 80.0
    prompts: int = 64
    rollouts: int = 8
    prompt_length: int = 512
    response_length: int = 8192
    segments: int = 32
    proposals: int = 4
    probe_tokens: int = 12
    backend: str = "cached"
    estimator: str = "support"
    samples: int = 4
    mfu: float = 0.35
    decode_rate: float = 2500.0
    transfer_gb: float = 1.0
    tensor_parallel: int = 1
    recompute: bool = True
    credit_workers: int = 32

    def __post_init__(self) -> None:
        for key in (
            "gpus", "prompts", "rollouts", "prompt_length", "response_length", "segments", "proposals",
            "probe_tokens", "samples", "tensor_parallel",
        ):  # fmt: skip
            check_count(OPTIONS.get(key, key), getattr(self, key))
        for key in ("tflops", "gpu_gb", "decode_rate", "transfer_gb"):
            check_number(OPTIONS.get(key, key), getattr(self, key), 1e-9)
        check_number("mfu", self.mfu, 1e-6, 1.0)
        _one_of("backend", self.backend, BACKENDS)
        _one_of("estimator", self.estimator, ESTIMATORS)
        if self.credit_workers < 0:
            raise ValueError(f"credit-workers={self.credit_workers}: expected an integer from 0")
        if self.segments > self.response_length:
            raise ValueError(f"segments={self.segments}: expected at most response-length={self.response_length}")
        if self.gpus % self.tensor_parallel:
            raise ValueError(f"tensor-parallel={self.tensor_parallel}: gpus={self.gpus} is not divisible by it")

    @property
    def traces(self) -> int:
        """B, rollouts of a step."""
        return self.prompts * self.rollouts

    @property
    def is_shared(self) -> bool:
        """Whether other processes share the driver's part of the step. With ``monte_carlo`` they could share credit, of
        which there is little."""
        big = self.traces * self.response_length > SHARED_FROM
        return self.credit_workers > 0 and self.estimator in ("support", "confidence") and big

    @property
    def states(self) -> int:
        """Boundaries of a trace whose value is asked for: the first segment's comes from the group."""
        return 0 if self.estimator == "none" else self.segments - 1

    @property
    def probes_a_trace(self) -> int:
        return self.states * self.proposals if self.estimator == "support" else 0

    @property
    def gpu_bytes(self) -> float:
        return self.gpu_gb * 1e9

    @property
    def rate(self) -> float:
        """Operations a second of all GPUs together, as assumed."""
        return self.gpus * self.tflops * 1e12 * self.mfu


OPTIONS = {
    "prompt_length": "prompt-length",
    "response_length": "response-length",
    "probe_tokens": "probe-tokens",
    "tensor_parallel": "tensor-parallel",
    "gpu_gb": "gpu-gb",
    "decode_rate": "decode-tokens-per-second",
    "transfer_gb": "transfer-gb-per-second",
}
"""Field -> option, where they differ."""


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{key}={value}: expected one of {', '.join(allowed)}.{nearest(value, list(allowed))}")
