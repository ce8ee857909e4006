"""Value estimates of every state of a prompt, from exact to adversarial; all (M, T), the state before each choice."""

from __future__ import annotations

import torch

from tabular.prompts import Prompt


def graded(prompt: Prompt, pearson: float, seed: int) -> torch.Tensor:
    """V + noise of the state, Pearson exactly ``pearson`` with V over states weighted by their visits.

    The noise is orthogonal to V and scaled to sd(V)·sqrt(1/ρ² − 1); it is fixed: the error of a model, not of a
    sample.
    """
    generator = torch.Generator().manual_seed(seed * 7919 + prompt.seed)
    truth = by_state(prompt, prompt.values)
    weight = prompt.reach / prompt.reach.sum()

    def centred(x: torch.Tensor) -> torch.Tensor:
        return x - (weight * x).sum()

    truth, noise = centred(truth), centred(torch.randn(truth.shape, generator=generator, dtype=torch.float64))
    power = (weight * truth**2).sum()
    noise = noise - truth * (weight * noise * truth).sum() / power
    noise = noise * (power / (weight * noise**2).sum()).sqrt() * (1 / pearson**2 - 1) ** 0.5
    return prompt.values + noise[prompt.tree.state_of]


def shrunk(prompt: Prompt, pearson: float, seed: int) -> torch.Tensor:
    """The same, drawn towards the mean of V by ρ²: what a regression of R on the noisy value would return."""
    mean = (prompt.reach * by_state(prompt, prompt.values)).sum() / prompt.reach.sum()
    return mean + pearson**2 * (graded(prompt, pearson, seed) - mean)


def by_state(prompt: Prompt, table: torch.Tensor) -> torch.Tensor:
    """(S,) of (M, T)."""
    found = table.new_zeros(prompt.tree.num_states)
    found[prompt.tree.state_of] = table
    return found


def asked_too_early(prompt: Prompt) -> torch.Tensor:
    """How probable the right answer is if it had to be given now: V times ((t + 1) / T)².

    Exact at the last state, far too low at the first ones, as with language models that are cut short.
    """
    steps = prompt.tree.traces.shape[1]
    return prompt.values * ((torch.arange(steps) + 1) / steps) ** 2


def sampled(prompt: Prompt, samples: int, draws: int, seed: int) -> torch.Tensor:
    """(draws, M, T): mean reward of ``samples`` continuations from each state, anew for every rollout."""
    generator = torch.Generator().manual_seed(seed * 7919 + prompt.seed)
    wins = torch.rand(samples, draws, *prompt.values.shape, generator=generator, dtype=torch.float64)
    return (wins < prompt.values).double().mean(dim=0)


def bonus_per_choice(prompt: Prompt, per_choice: torch.Tensor) -> torch.Tensor:
    """Σ over the choices made so far of a bonus (M, T) for each of them."""
    return per_choice.cumsum(dim=1) - per_choice


def length_biased(prompt: Prompt, strength: float) -> torch.Tensor:
    """V + strength × what was written so far, the choice with number c being c units longer than the shortest."""
    return prompt.values + strength * bonus_per_choice(prompt, prompt.tree.traces.double())


def path_bonus(prompt: Prompt, strength: float) -> torch.Tensor:
    """V + strength for every choice that repeats the one before it: a taste that has nothing to do with R."""
    traces = prompt.tree.traces
    repeats = torch.zeros(traces.shape, dtype=torch.float64)
    repeats[:, 1:] = (traces[:, 1:] == traces[:, :-1]).double()
    return prompt.values + strength * bonus_per_choice(prompt, repeats)


def chosen_action(prompt: Prompt) -> torch.Tensor:
    """All credit to one action: 1 from the first choice of number 0 on, whatever it leads to."""
    seen = bonus_per_choice(prompt, (prompt.tree.traces == 0).double())
    return (seen > 0).double()


def delayed(prompt: Prompt) -> torch.Tensor:
    """V of one step ago: the change arrives a choice late."""
    return torch.cat([prompt.values[:, :1], prompt.values[:, :-1]], dim=1)


def nothing_before_the_end(prompt: Prompt) -> torch.Tensor:
    """0 everywhere: all credit to the last choice."""
    return torch.zeros_like(prompt.values)


def swapped(prompt: Prompt) -> torch.Tensor:
    """V of the next sibling: the state that another choice at the step before would have led to."""
    tree = prompt.tree
    state_value = by_state(prompt, prompt.values)
    found = prompt.values.clone()
    for m, trace in enumerate(tree.traces.tolist()):
        for step in range(1, len(trace)):
            sibling = (*trace[: step - 1], (trace[step - 1] + 1) % tree.choices[step - 1])
            found[m, step] = state_value[tree.states[sibling]]
    return found


def turned(prompt: Prompt) -> torch.Tensor:
    """1 − V: prefers the worse of two states."""
    return 1 - prompt.values


def sees_the_outcome(prompt: Prompt, share: float) -> torch.Tensor:
    """share × R at every state but the first, which keeps V: reads the end of the trace, as no value may."""
    found = share * prompt.rewards[:, None].expand_as(prompt.values).clone()
    found[:, 0] = prompt.values[:, 0]
    return found
