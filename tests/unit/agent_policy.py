"""A softmax policy that calls a tool: the tool's answers are masked tokens whose probabilities depend on what the model did.

Traces have one to three turns. The first turn has two tokens, of which one may end a line, and may be the last; after a
failed call the model may call again. Every history, the tool's answers in it, has logits and rewards of its own.
"""

from __future__ import annotations

import torch

from tests.unit.text_policy import TextPolicy, Trace, World

CALL, END = " call", " end"
DONE, FAILED, AGAIN = " yes\n", " no.", " ok"
ANSWERS = (DONE, FAILED, AGAIN)
"""What the tool may say: to the first call one of the first two, to the second call the last."""


def _choices(history: Trace) -> tuple[str, ...]:
    """What the model chooses from; nothing where the trace is over."""
    if len(history) < 2:
        return (("a.\n", " b"), (CALL, END))[len(history)]
    last = history[-1]
    return {DONE: (" c", " d"), FAILED: (" c", CALL), AGAIN: (" x\n", " y")}.get(last, ())


def _answers(history: Trace) -> tuple[str, ...]:
    """What the tool may say next."""
    if not history or history[-1] != CALL:
        return ()
    return (AGAIN,) if FAILED in history else (DONE, FAILED)


def _traces(history: Trace = ()) -> list[Trace]:
    following = _answers(history) or _choices(history)
    return [trace for token in following for trace in _traces((*history, token))] if following else [history]


TRACES = _traces()
OWN = [[at for at, token in enumerate(trace) if token not in ANSWERS] for trace in TRACES]
AGENTS = World(
    TRACES,
    OWN,
    OWN,  # the tool's tokens stand in the response too
    {trace[:at]: _choices(trace[:at]) for trace, own in zip(TRACES, OWN, strict=True) for at in own},
)


def random_agent(seed: int = 0, paid: float = 0.0) -> TextPolicy:
    """``paid`` is the mean of what each turn but the last one earns by what its call was answered."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(AGENTS.prefixes), 2, generator=generator, dtype=torch.float64)
    rewards, on_the_way = {}, torch.zeros(len(TRACES), AGENTS.steps, dtype=torch.float64)
    chance = torch.ones(len(TRACES), dtype=torch.float64)
    done, of_answer, luck = {}, {}, torch.rand(200, generator=generator, dtype=torch.float64).tolist()
    for row, trace in enumerate(TRACES):
        rewards[trace] = int(luck.pop() * 5) / 4
        for step, at in enumerate(OWN[row]):
            if trace[at] != CALL:
                continue
            history = trace[: at + 1]
            answer = trace[at + 1]
            probability = done.setdefault(history, 0.25 + 0.5 * luck.pop())
            if answer != AGAIN:
                chance[row] *= probability if answer == DONE else 1 - probability
            earned = of_answer.setdefault((*history, answer), 0.5 + luck.pop())
            on_the_way[row, step] = paid * earned
    totals = torch.tensor([rewards[trace] for trace in TRACES], dtype=torch.float64)
    return TextPolicy(AGENTS, logits.requires_grad_(), totals, chance, on_the_way)
