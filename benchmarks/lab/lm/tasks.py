"""Three task families in words, with steps that a checker can follow: totals, sorting, small functions."""

from __future__ import annotations

import random

from lab.family import Data, Family, Question, accepts_equal, line_is, stream, written
from lab.lm.functions import accepts_function, make_function, right_function, write_function

LM = "smollm2"
TERMS = 4
WORDS = [
    "acorn",
    "apple",
    "april",
    "arrow",
    "badge",
    "baker",
    "basin",
    "beach",
    "bench",
    "berry",
    "blade",
    "board",
    "bread",
    "brick",
    "bridge",
    "broom",
    "cabin",
    "cable",
    "camel",
    "candle",
    "canal",
    "cargo",
    "castle",
    "chair",
    "chalk",
    "cherry",
    "circle",
    "cloud",
    "coast",
    "copper",
    "coral",
    "cotton",
    "crane",
    "crown",
    "daisy",
    "dance",
    "desert",
    "dragon",
    "eagle",
    "earth",
    "engine",
    "fabric",
    "falcon",
    "farmer",
    "feather",
    "field",
    "flame",
    "forest",
    "fruit",
    "garden",
    "ginger",
    "glass",
    "grape",
    "hammer",
    "harbor",
    "hazel",
    "honey",
    "island",
    "jacket",
    "jungle",
    "kettle",
    "ladder",
    "lemon",
    "lizard",
    "maple",
    "market",
    "meadow",
    "melon",
    "mirror",
    "needle",
    "ocean",
    "olive",
    "orange",
    "paper",
    "pearl",
    "pencil",
    "pepper",
    "planet",
    "plum",
    "pocket",
    "rabbit",
    "river",
    "rocket",
    "saddle",
]
SORTED_WORDS = 4


def _make_totals(rng: random.Random) -> Question:
    """A number of two digits, to or from which three small ones are added or taken."""
    data = [str(rng.randint(30, 69))]
    for _ in range(TERMS - 1):
        data += [rng.choice("+-"), str(rng.randint(3, 9))]
    lines = _total_lines(tuple(data))
    return Question(f"Compute {' '.join(data)}.", lines[-1].split()[-1], tuple(data))


def _total_lines(data: Data) -> list[str]:
    total, lines = int(data[0]), []
    for sign, term in zip(data[1::2], data[2::2], strict=True):
        after = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total} {sign} {term} = {after}")
        total = after
    return lines


def _make_words(rng: random.Random) -> Question:
    """Words whose first letters differ."""
    by_letter = {letter: [w for w in WORDS if w[0] == letter] for letter in {w[0] for w in WORDS}}
    words = [rng.choice(by_letter[letter]) for letter in rng.sample(sorted(by_letter), SORTED_WORDS)]
    return Question(f"Sort these words alphabetically: {' '.join(words)}", " ".join(sorted(words)), tuple(words))


def _word_lines(data: Data) -> list[str]:
    left, lines = list(data), []
    while len(left) > 1:
        left.remove(first := min(left))
        lines.append(f"{first} | {' '.join(left)}")
    return lines


LM_FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        Family("totals", LM, "one integer after three lines; own mistakes", stream(_make_totals, "_make_totals"),
               written(_total_lines), accepts_equal, line_is(_total_lines), max_response_tokens=64),
        Family("words", LM, "list of words; own mistakes", stream(_make_words, "_make_words"),
               written(_word_lines), accepts_equal, line_is(_word_lines), max_response_tokens=64),
        Family("ranks", LM, "words again, a third of the reward each line; own mistakes", stream(_make_words, "_make_words"),
               written(_word_lines), accepts_equal, line_is(_word_lines), graded=True, by_lines=True, max_response_tokens=64),
        Family("functions", LM, "multi-line Python, run in the sandbox; own mistakes",
               stream(make_function, "make_function"), write_function, accepts_function, right_function,
               whole=True, max_response_tokens=120),
    )
}  # fmt: skip
