"""The optimal token baseline as verl has it, with a trace's own reward left out of its baseline."""

from __future__ import annotations

import numpy as np
import torch

from estimators_table.batch import Batch

FLOOR = 1e-8


def otb_leave_one_out(batch: Batch) -> torch.Tensor:
    """A_t^i = R^i − Σ_{j≠i} R^j W_t^j / Σ_{j≠i} W_t^j over the other members of the group that are alive at token t.

    W_t = Σ_{s≤t} (1 − 2π(o_s) + Σ_v π_v²); 0 is the baseline where nobody else is alive, as in verl.
    """
    weight = ((1 - 2 * batch.log_probs.exp() + batch.sum_pi_squared) * batch.mask).cumsum(1) * batch.mask
    outcome = (batch.rewards * batch.mask).sum(1, keepdim=True)
    number = torch.from_numpy(np.unique(batch.index, return_inverse=True)[1])

    def of_others(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(int(number.max()) + 1, x.shape[1], dtype=x.dtype).index_add_(0, number, x)
        return total[number] - x

    # a weight of exactly 0 is a sure token; what is left of a difference must not be divided by
    weighed = of_others(weight)
    baseline = torch.where(weighed > FLOOR, of_others(weight * outcome) / weighed.clamp(min=FLOOR), 0.0)
    return (outcome - baseline) * batch.mask
