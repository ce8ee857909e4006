"""Load a stream of named weights into a model, and insist that it was complete."""

from __future__ import annotations

import torch


class WeightUpdate:
    """One pass over all weights of `model`.

    Weights that share memory (a tied output head) count as one: any of their names will do. Buffers that belong
    to the checkpoint are weights like any other.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._targets: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
        self._loaded: set[int] = set()

    def add(self, name: str, weight: torch.Tensor) -> None:
        """Copy one weight in place, cast to the model's type.

        Raises ValueError if the model has no weight of that name and shape.
        """
        target = self._targets.get(name)
        if target is None:
            raise ValueError(f"weight {name} {tuple(weight.shape)} does not exist in the rollout model")
        if target.shape != weight.shape:
            raise ValueError(
                f"weight {name} has shape {tuple(weight.shape)}, the rollout model {tuple(target.shape)}"
            )
        with torch.no_grad():
            target.copy_(weight)
        self._loaded.add(target.data_ptr())

    def finish(self) -> None:
        """Raises ValueError naming the weights that never arrived."""
        missing = [name for name, target in self._targets.items() if target.data_ptr() not in self._loaded]
        if missing:
            raise ValueError(f"{len(missing)} of {len(self._targets)} weights did not arrive: {missing[:5]}")
