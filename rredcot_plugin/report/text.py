"""Text that a model wrote, made fit to look at, and numbers in one form everywhere."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable

SMALLEST = 1e-9
"""What is smaller is taken for rounding: it is shown as 0."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
SPECIAL_TOKEN = re.compile(r"<\|[^|<>]{1,40}\|>")
TURN = re.compile(r"<\|im_start\|>(system|user|assistant|tool)\n")


def visible(text: str) -> str:
    """The text with control and direction characters replaced by ``·``; newlines and tabs stay.

    A terminal would obey an escape sequence, a browser a change of direction.

    >>> visible("done\\x1b[2J\\tok")
    'done·[2J\\tok'
    """
    return CONTROL.sub("·", text.replace("\r\n", "\n"))


def escape(text: str) -> str:
    """``visible`` text as HTML, fit for contents and for quoted attributes.

    >>> escape('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(visible(text), quote=True)


def readable_prompt(prompt: str) -> str:
    """The end of a prompt without the chat template's marks.

    >>> readable_prompt("<|im_start|>user\\n2 + 2 =<|im_end|>\\n<|im_start|>assistant\\n")
    '2 + 2 ='
    """
    return visible(SPECIAL_TOKEN.sub("", TURN.sub("", prompt))).strip()


def signed(number: float, digits: int = 2) -> str:
    """A number with sign, minus as a minus; ``n/a`` for NaN; large ones in powers of ten.

    >>> signed(-0.621), signed(0.5), signed(0.001), signed(float("nan")), signed(-1.5e300)
    ('−0.62', '+0.50', '0.00', 'n/a', '−1.50e+300')
    """
    if math.isnan(number):
        return "n/a"
    text = f"{abs(number):.{digits}{'f' if abs(number) < 1e9 else 'e'}}"
    if float(text) == 0:
        return text
    return ("−" if number < 0 else "+") + text


def plain(number: float, digits: int = 2) -> str:
    """A number with a minus where it is negative; ``n/a`` for NaN.

    >>> plain(0.5), plain(-1.0, 0)
    ('0.50', '−1')
    """
    return "n/a" if math.isnan(number) else signed(number, digits).removeprefix("+")


def decimals(size: float, least: int = 2) -> int:
    """Decimals that show two digits of numbers of this size; ``least`` at least, and for what is only rounding.

    >>> decimals(1e6), decimals(0.5), decimals(0.004), decimals(1e-6), decimals(0.0)
    (2, 2, 4, 7, 2)
    """
    return max(least, 1 - math.floor(math.log10(size))) if SMALLEST <= size < 1 else least


def short(number: float) -> str:
    """A number without decimals where it is whole, else with two, a small one with as many as it needs.

    >>> short(1.0), short(0.25), short(-0.0004)
    ('1', '0.25', '−0.00040')
    """
    return plain(number, 0 if number % 1 == 0 else decimals(abs(number)))


def precise(number: float, least: int = 2) -> str:
    """A number by itself, with two digits also where it is small.

    >>> precise(0.5), precise(-0.0004)
    ('0.50', '−0.00040')
    """
    return plain(number, decimals(abs(number), least))


def column(numbers: Iterable[float], least: int = 2) -> list[str]:
    """Numbers below each other, all with the decimals that the largest one needs.

    >>> column([0.5, 0.0004]), column([0.0012, -0.0004])
    (['0.50', '0.00'], ['0.0012', '−0.0004'])
    """
    numbers = list(numbers)
    digits = decimals(max((abs(number) for number in numbers if math.isfinite(number)), default=0.0), least)
    return [plain(number, digits) for number in numbers]


def span(low: float, high: float, least: int = 2) -> str:
    """The two edges of a bin, told apart however narrow it is.

    >>> span(0.2, 0.3), span(-0.0002, -0.0001)
    ('0.20 to 0.30', '−0.0002 to −0.0001')
    """
    digits = decimals(10.5 * (high - low), least)  # one digit of the width, which is round up to rounding
    return f"{plain(low, digits)} to {plain(high, digits)}"
