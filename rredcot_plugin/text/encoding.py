"""From an answer text to the tokens of a probe: bridge + answer + terminator, split where counting starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any

from rredcot_plugin.allowed import NAMED, Choice
from rredcot_plugin.text.answers import FORMATS, THINK_END, AnswerFormat, format_votes, most_voted
from rredcot_plugin.text.dialogue import THINK_START, Turns, lead_to_answer, opened_by

AUTO, UNTIL_SEEN = "auto", "boxed"
ANCHORS = ("\n", ".", "x")

EncodedProbe = tuple[tuple[int, ...], int]
"""(token ids, number of leading ids that belong to the bridge)."""


@dataclass(frozen=True)
class AnswerStyle:
    """How the responses of a batch answer: how many use each format, how many there are, how many of them think, and how many
    thoughts the prompt or the model opens with ``<think>``."""

    votes: Counter[str]
    responses: int
    thoughts: int
    opened: int

    @classmethod
    def of(cls, texts: Sequence[str], prompt_tails: Sequence[str]) -> AnswerStyle:
        rows = list(zip_longest(texts, prompt_tails, fillvalue=""))
        opened = [THINK_START in tail + text for text, tail in rows]
        thoughts = sum(own or THINK_END in text for own, (text, _) in zip(opened, rows, strict=True))
        return cls(format_votes(texts), len(opened), thoughts, sum(opened))

    def __add__(self, other: AnswerStyle) -> AnswerStyle:
        """That of two parts of a batch together."""
        numbers = (self.responses + other.responses, self.thoughts + other.thoughts, self.opened + other.opened)
        return AnswerStyle(self.votes + other.votes, *numbers)

    @property
    def thinks(self) -> bool:
        """Whether most do: one response may write ``</think>`` by chance, or quote it from a tool."""
        return 0 < self.responses <= 2 * self.thoughts

    @property
    def opens(self) -> bool:
        return 0 < self.thoughts <= 2 * self.opened


def choose_bridge(bridge: str) -> Choice:
    """What ``ProbeEncoder`` puts before an answer; ``bridge`` as there."""
    if bridge != AUTO:
        return Choice(bridge, NAMED)
    formats = ", ".join(FORMATS)
    reason = (
        f"follows the answer format that most responses of the step before use ({formats}; {UNTIL_SEEN} until one is recognised), after "
        f"{THINK_END} where the model thinks, in a turn of its own where a tool is to speak"
    )
    return Choice(None, reason)


def choose_terminator(terminator: str) -> Choice:
    """What ``ProbeEncoder`` puts after an answer; ``terminator`` as there."""
    if terminator != AUTO:
        return Choice(terminator, NAMED)
    return Choice(None, "closes the answer as the format of the bridge does, else with the end-of-sequence token")


@dataclass
class ProbeEncoder:
    """Encodes answers for one tokenizer, and remembers what it has encoded.

    ``bridge`` and ``terminator`` are texts, or ``auto``: then they follow the answer format that most
    responses use (``boxed`` until one is recognised; `due` says which responses), with what the tokenizer's chat
    template has before an answer in front (`text.dialogue`). The answer is encoded together with bridge and terminator,
    as the model would write it; a token that reaches over the end of the bridge counts as answer.
    """

    tokenizer: Any
    bridge: str = AUTO
    terminator: str = AUTO
    max_probe_tokens: int = 32
    answer_format: AnswerFormat = FORMATS[UNTIL_SEEN]
    thinking: bool = False
    opens: bool = False
    _before: AnswerStyle | None = None
    _seen: dict[tuple[str, str], EncodedProbe | None] = field(default_factory=dict, repr=False)

    def observe(self, texts: Sequence[str], prompt_tails: Sequence[str]) -> None:
        """Follow how these responses answer, and whether they think."""
        self.follow(AnswerStyle.of(texts, prompt_tails))

    def due(self, style: AnswerStyle) -> AnswerStyle:
        """The style to probe a training step in whose responses have ``style``: that of the step before.

        What a rollout writes later then has no say in how its own states are probed, so that no value depends on it. The
        first step in which a format is recognised has no other than its own.
        """
        due = self._before or style
        if style.votes or style.thinks:
            self._before = style
        return due

    def follow(self, style: AnswerStyle) -> None:
        """Probe in this style from now on."""
        self.answer_format = most_voted(style.votes) or self.answer_format
        if style.thinks:
            self.thinking, self.opens = True, self.opens or style.opens

    def state_dict(self) -> dict[str, Any]:
        """What past steps have taught: numbers and texts only, so that ``torch.load(weights_only=True)`` reads it."""
        before = self._before and {**asdict(self._before), "votes": dict(self._before.votes)}
        known = {"format": self.answer_format.name, "thinking": self.thinking, "opens": self.opens}
        return {**known, "before": before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # another version may know other formats
        self.answer_format = FORMATS.get(state["format"], self.answer_format)
        self.thinking, self.opens, before = state["thinking"], state["opens"], state["before"]
        self._before = before and AnswerStyle(**{**before, "votes": Counter(before["votes"])})

    def bridge_after(self, prefix: str, tail: str = "") -> str:
        """The bridge after a response that reads ``prefix`` so far, after a prompt that ends in ``tail``.

        Line ends that stand there already are not repeated, and a thought that has ended is not made to end
        again. After a tool's answer, or a call that waits for one, the answer has a turn of its own.
        """
        if self.bridge != AUTO:
            return self.bridge
        before = opened_by(tail, self._turns) + prefix
        lead, fresh = self._lead(before)
        text = self.answer_format.bridge
        if fresh:
            return lead + text.lstrip("\n")
        present = len(before) - len(before.rstrip("\n"))
        leading = len(text) - len(text.lstrip("\n"))
        return text[min(present, leading) :]

    def _lead(self, before: str) -> tuple[str, bool]:
        return lead_to_answer(before, self._turns, thinks=self.thinking, opens=self.opens)

    def closing(self) -> str:
        if self.terminator != AUTO:
            return self.terminator
        end = str(self.tokenizer.eos_token or "\n") if self.answer_format.ends else ""
        return self.answer_format.terminator + end

    def encode(self, bridge: str, answer: str) -> EncodedProbe | None:
        """Token ids and the length of the bridge; None if answer and terminator exceed ``max_probe_tokens``, or have
        characters that the tokenizer does not know."""
        return self._cached(bridge, answer + self.closing())

    def answer_of(self, text: str) -> str | None:
        """The final answer of a response, None where there is none; where the model thinks, only what stands after the end of
        the thinking counts. A special token, the end-of-sequence token first of all, ends an answer as a line end does."""
        return self.answer_format.extract(self._special.sub("\n", text.rpartition(THINK_END)[2]))

    def encode_reference(self, prefix: str, solution: str, answer: str, tail: str = "") -> EncodedProbe | None:
        """A reference solution as the continuation of ``prefix``; None if it exceeds ``max_probe_tokens``.

        What ends the thinking or the turn is not counted; the solution is, and so are bridge, ``answer`` and terminator
        where the solution does not state an answer in the format at hand.
        """
        before = opened_by(tail, self._turns) + prefix
        lead, fresh = self._lead(before)
        bridge = lead if fresh or before.endswith("\n") else "\n"
        counted = solution
        if answer and self.answer_format.extract(solution) is None:
            counted += self.answer_format.bridge + answer
        return self._cached(bridge, counted + self.closing() if counted != solution else counted)

    def _cached(self, bridge: str, counted: str) -> EncodedProbe | None:
        key = (bridge, counted)
        if key not in self._seen:
            if len(self._seen) > 100_000:  # answers of a long run never repeat: do not keep them all
                self._seen.clear()
            self._seen[key] = self._encode(*key)
        return self._seen[key]

    def _encode(self, bridge: str, counted: str) -> EncodedProbe | None:
        ids, ends = self._after_text(bridge + counted)
        skip = next((i for i, end in enumerate(ends) if end > len(bridge)), len(ids)) if bridge else 0
        if not ids or not 0 < len(ids) - skip <= self.max_probe_tokens:
            return None
        if self._unknown in ids[skip:]:
            return None  # answers that differ in unknown characters only would be one probe
        return tuple(ids), skip

    def _after_text(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids of ``text`` as they stand after other text, and the character at which each ends.

        SentencePiece puts a space before the first word of what it encodes, which a bridge must not begin
        with; an anchor in front takes the space, and its tokens are left out again.
        """
        for anchor in ANCHORS if self._adds_space else ():
            ids, spans = self._spans_of(anchor + text)
            first = next((i for i, (_, end) in enumerate(spans) if end > len(anchor)), len(ids))
            if first < len(ids) and spans[first][0] >= len(anchor):  # else a token joins anchor and text
                return ids[first:], [end - len(anchor) for _, end in spans[first:]]
        ids, spans = self._spans_of(text)
        return ids, [end for _, end in spans]

    def _spans_of(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoding["input_ids"], encoding["offset_mapping"]

    @cached_property
    def _unknown(self) -> int | None:
        """The token of characters that have none; tokenizers whose tokens are bytes need none, and some call their
        end-of-sequence token so."""
        unknown: int | None = self.tokenizer.unk_token_id
        return None if unknown == self.tokenizer.eos_token_id else unknown

    @cached_property
    def _special(self) -> re.Pattern[str]:
        tokens = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        tokens.sort(key=len, reverse=True)
        return re.compile("|".join(map(re.escape, tokens)) or "(?!)")

    @cached_property
    def _turns(self) -> Turns | None:
        return Turns.of(self.tokenizer)

    @cached_property
    def _adds_space(self) -> bool:
        ids = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        return bool(ids) and str(self.tokenizer.convert_ids_to_tokens(ids[0])).startswith("▁")
