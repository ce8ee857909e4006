"""Plain arithmetic, read with `ast`; nothing of it is evaluated as code.

Whatever the text is, the reply is a text: a result, or one that begins with "error".
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

MAX_CHARS = 200
"""Of an expression; it also bounds how deep one can be nested."""
MAX_BITS = 256
"""Of numerator and denominator of every number on the way: neither time nor memory can be spent here."""
DIGITS = 6
"""Decimal places, where a result is not an integer."""

OPERATIONS: Mapping[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculate(expression: object) -> str:
    """The value of an expression of numbers, ``+ - * /`` and parentheses, or a text that begins with "error".

    >>> calculate("12*(35 - 4)"), calculate("1/8"), calculate("2/3")
    ('372', '0.125', '0.666667')
    >>> calculate("1/0"), calculate("9**9"), calculate("open('x')")
    ('error: division by zero', 'error: only + - * / are known', 'error: not an expression')
    """
    if not isinstance(expression, str) or not expression.strip():
        return "error: no expression"
    if len(expression) > MAX_CHARS:
        return f"error: more than {MAX_CHARS} characters"
    try:
        return _written(_value(ast.parse(expression.strip(), mode="eval").body))
    except ZeroDivisionError:
        return "error: division by zero"
    except _NotArithmeticError as error:
        return f"error: {error}"
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what `ast.parse` raises
        return "error: not an expression"


class _NotArithmeticError(Exception):
    """Something that the calculator does not take; the message says what."""


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        if node.value != node.value or abs(node.value) >= 2.0**MAX_BITS:
            raise _NotArithmeticError("number too large")
        return _bounded(Fraction(node.value if isinstance(node.value, int) else repr(node.value)))
    if isinstance(node, ast.BinOp):
        return _bounded(_operation(node.op)(_value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp):
        return _operation(node.op)(_value(node.operand))
    raise _NotArithmeticError("not an expression")


def _operation(node: ast.AST) -> Callable[..., Fraction]:
    if type(node) not in OPERATIONS:
        raise _NotArithmeticError("only + - * / are known")
    return OPERATIONS[type(node)]


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _NotArithmeticError("number too large")
    return value


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(value * 10**DIGITS)
    whole, rest = divmod(abs(scaled), 10**DIGITS)
    return f"{'-' if scaled < 0 else ''}{whole}.{rest:0{DIGITS}d}".rstrip("0").rstrip(".")
