"""Programs for the sandbox's verdict: honest ones that must earn everything, as (solution, tests, entry point)."""

from __future__ import annotations

from tests.unit.sandbox_programs import EVERY_AND_MAP, PROPERTY, SEQUENCE

SQUARE = "def f(x): return x * x"
HONEST: dict[str, tuple[str, str, str | None]] = {
    "floats": (
        "def has_close(numbers, threshold):\n"
        "    return any(abs(a - b) < threshold for i, a in enumerate(numbers) for b in numbers[:i])",
        "METADATA = {}\ndef check(candidate):\n"
        "    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True\n"
        "    assert candidate([1.0, 2.0], threshold=0.5) == False\n",
        "has_close",
    ),
    "close floats": (
        "import math\ndef root(x):\n    return math.sqrt(x)",
        "import math\ndef check(candidate):\n    assert abs(candidate(2) - 2 ** .5) < 1e-12\n"
        "    assert math.isnan(candidate(float('nan'))) and candidate(math.inf) == math.inf\n",
        "root",
    ),
    "unicode": ("def f(s): return s[::-1]", "assert f('žluťoučký 🐎') == '🐎 ýkčuoťulž'\nassert f('\\ud800') == '\\ud800'", None),
    "nested": (
        "from collections import Counter\ndef f(s): return {'n': Counter(s), (1, 2): [b'x', {1}, frozenset((2,)), None, 1j]}",
        "assert f('aab') == {'n': {'a': 2, 'b': 1}, (1, 2): [b'x', {1}, frozenset({2}), None, 1j]}",
        None,
    ),
    "large": (
        "import math\ndef f(n): return [math.factorial(n)] * 20",
        "import math\nassert f(2000) == [math.factorial(2000)] * 20",
        None,
    ),
    "exceptions": (
        "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x",
        "try:\n    f(-1)\nexcept ValueError as error:\n    assert str(error) == 'negative'\nelse:\n    assert False\nassert f(1) == 1",
        None,
    ),
    "helpers": (
        "def encode(s): return s[1:] + s[:1]\ndef decode(s): return s[-1:] + s[:-1]",
        "def check(candidate):\n    for word in ('abc', 'x', ''):\n        assert candidate(encode(word)) == word\n",
        "decode",
    ),
    "class": ("class Solution:\n    def twice(self, x): return 2 * x", "assert candidate(4) == 8", "Solution.twice"),
    "talkative": ("def f(x):\n    print('thinking', x)\n    return x", "assert f(1) == 1", None),
    "threads": (
        "import threading\ndef f(x):\n    out = []\n    t = threading.Thread(target=lambda: out.append(x))\n"
        "    t.start(); t.join()\n    return out",
        "assert f(1) == [1]",
        None,
    ),
    "asyncio": ("import asyncio\nasync def g(x): return x\ndef f(x): return asyncio.run(g(x))", "assert f(3) == 3", None),
    "no main": ("def f(x): return x\nif __name__ == '__main__':\n    raise SystemExit(1)", "assert f(3) == 3", None),
    "recursion": ("def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)", "assert [fib(n) for n in range(12)] == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]", None),
    "deep recursion": ("def depth(n): return 0 if n == 0 else 1 + depth(n - 1)", "assert depth(800) == 800", None),
    "generators inside": (
        "def primes():\n    found = []\n    n = 2\n    while True:\n        if all(n % p for p in found):\n            found.append(n)\n            yield n\n"
        "        n += 1\nfrom itertools import islice\ndef first(n): return list(islice(primes(), n))",
        "def check(candidate):\n    assert candidate(6) == [2, 3, 5, 7, 11, 13]\n    assert candidate(0) == []\n",
        "first",
    ),
    "dataclasses": (
        "from dataclasses import dataclass, asdict\n@dataclass(order=True)\nclass P:\n    x: int\n    y: int = 0\n"
        "def ordered(pairs): return [asdict(p) for p in sorted(P(*pair) for pair in pairs)]",
        "assert ordered([(2, 1), (1, 5)]) == [{'x': 1, 'y': 5}, {'x': 2, 'y': 1}]",
        None,
    ),
    "enum and named tuple": (
        "import enum, collections\nclass C(enum.IntEnum):\n    RED = 1\nP = collections.namedtuple('P', 'x y')\ndef f(): return P(C.RED, 2)",
        "assert f() == (1, 2)",
        None,
    ),
    "standard library": (
        "import re, heapq, bisect, functools, datetime, decimal, fractions, string\n@functools.lru_cache\n"
        "def f(text):\n    words = re.findall(r'\\w+', text)\n    return heapq.nsmallest(2, words), bisect.bisect(sorted(words), 'c'), datetime.date(2024, 2, 29).isoformat()",
        "assert f('d b a c') == (['a', 'b'], 3, '2024-02-29')\nassert f('d b a c') == f('d b a c')",
        None,
    ),
    "sets": ("def common(a, b): return set(a) & set(b)", "assert common([1, 2, 3], (2, 3, 4)) == {2, 3}\nassert common([], []) == set()", None),
    "float results": ("def mean(v): return sum(v) / len(v)", "import math\nassert math.isclose(mean([.1, .2]), .15)\nassert abs(mean([1, 2]) - 1.5) < 1e-9", None),
    "complex": ("import cmath\ndef roots(b, c):\n    d = cmath.sqrt(b * b - 4 * c)\n    return ((-b + d) / 2, (-b - d) / 2)", "assert roots(0, 1) == (1j, -1j)", None),
    "strings": ("def f(s): return ''.join(sorted(s.split(' ')[0].upper()))", "assert f('hello you') == 'EHLLO'", None),
    "dynamic programming": (
        "def lcs(a, b):\n    t = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]\n    for i, x in enumerate(a):\n        for j, y in enumerate(b):\n"
        "            t[i + 1][j + 1] = t[i][j] + 1 if x == y else max(t[i][j + 1], t[i + 1][j])\n    return t[-1][-1]",
        "assert lcs('ABCBDAB', 'BDCABA') == 4\nassert lcs('a' * 200, 'b' * 200) == 0",
        None,
    ),
    "files of its own": ("def f(x):\n    with open('notes', 'a+') as file:\n        file.write(x)\n        file.seek(0)\n        return file.read()", "assert f('a') == 'a' and f('b') == 'ab'", None),
    "temporary files": ("import tempfile\ndef f(x):\n    with tempfile.TemporaryFile() as file:\n        return file.write(x)", "assert f(b'abc') == 3", None),
    "random numbers": ("import random, secrets, os\ndef f(n):\n    random.seed(3)\n    return len({random.random() for _ in range(n)}), len(os.urandom(4)), len(open('/dev/urandom', 'rb').read(3))", "assert f(5) == (5, 4, 3)", None),
    "string annotations": ("from __future__ import annotations\nimport dataclasses, typing\n@dataclasses.dataclass\nclass P:\n    x: list[int]\ndef f(x): return [str(k) for k in typing.get_type_hints(P)] + P(x).x", "assert f([1]) == ['x', 1]", None),
    "pickles its own": ("import pickle, copy\nclass P:\n    def __init__(self, x): self.x = x\ndef f(x): return pickle.loads(pickle.dumps(P(x))).x + copy.deepcopy(P(x)).x", "assert f(2) == 4", None),
    "dataclasses in the tests": ("def f(x): return x * x", "from dataclasses import dataclass\n@dataclass\nclass Case:\n    given: int\n    expected: int\nfor case in (Case(2, 4), Case(3, 9)): assert f(case.given) == case.expected", None),
    "annotations in the tests": ("def f(x): return x", "def g(x: undefined_name if False else int) -> int: return f(x)\nassert g.__annotations__['x'] is int and g(2) == 2", None),
    "keywords and defaults": ("def f(a, *rest, scale=1, **more): return (a + sum(rest)) * scale + len(more)", "assert f(1) == 1 and f(1, 2, 3, scale=2, z=0) == 13", None),
    "in all and map": ("def f(x): return x * x", EVERY_AND_MAP, None),
    "in comprehensions": ("def f(x): return x * x", "assert [f(x) for x in (1, 2)] == [1, 4]\nassert all(f(x) >= x for x in range(9))\nassert sum(map(f, range(4))) == 14", None),
    "iterators in the tests": (
        "def f(n): return list(range(n))",
        "class I:\n    def __init__(self, items): self.items = iter(items)\n    def __iter__(self): return self\n    def __next__(self): return next(self.items)\n"
        "assert list(I(f(3))) == [0, 1, 2]\nit = iter(f(1))\nassert next(it) == 0 and next(it, None) is None\n"
        "try:\n    next(it)\nexcept StopIteration:\n    pass\nelse:\n    assert False\n",
        None,
    ),
    "sequences in the tests": (SQUARE, SEQUENCE, None),
    "properties in the tests": (SQUARE, PROPERTY + "assert getattr(S(), 'right', False)\n", None),
    "expected exceptions": (
        "def f(x):\n    if x == 0: raise IndexError('empty')\n    if x == 1: raise KeyError('one')\n    return [x][0]",
        "for x, kind in ((0, IndexError), (1, KeyError)):\n    try:\n        f(x)\n    except kind as error:\n        assert str(error)\n    else:\n        assert False\nassert f(2) == 2",
        None,
    ),
    "expected in a helper": (
        "def f(x): raise AttributeError('no')",
        "def fails(kind, *args):\n    try:\n        f(*args)\n    except kind:\n        return True\n    return False\nassert all(map(fails, [AttributeError], [1]))\nassert not fails(AttributeError, 1) is False",
        None,
    ),
    "expected, raised again": ("def f(x): raise ZeroDivisionError", "try:\n    try:\n        f(1)\n    except ArithmeticError:\n        raise\nexcept ZeroDivisionError as error:\n    done = True\nassert done", None),
    "expected, translated": ("def f(x): raise KeyError(x)", "def g():\n    try:\n        f(1)\n    except KeyError as error:\n        raise ValueError from error\ntry:\n    g()\nexcept ValueError:\n    pass\nelse:\n    assert False", None),
    "expected by contextlib": ("def f(x): raise LookupError", "import contextlib\nwith contextlib.suppress(LookupError):\n    f(1)\n    assert False\n", None),
    "expected by a context manager": (
        "def f(x): raise IndexError",
        "import contextlib\n@contextlib.contextmanager\ndef raises(kind):\n    try:\n        yield\n    except kind:\n        return\n    assert False\nwith raises(IndexError): f(1)\n",
        None,
    ),
    "expected by unittest": ("def f(x): raise TypeError('t')", "import unittest\ncase = unittest.TestCase()\ncase.assertRaises(TypeError, f, 1)\nwith case.assertRaisesRegex(TypeError, 't'):\n    f(1)\n", None),
    "expected in a group": ("def f(x): raise TypeError", "try:\n    f(1)\nexcept* TypeError as group:\n    assert len(group.exceptions) == 1\nelse:\n    assert False", None),
    "expected base class": ("import json\ndef f(x): return json.loads(x)", "try:\n    f('{')\nexcept ValueError as error:\n    assert 'line 1' in str(error)\nelse:\n    assert False\nassert f('[1]') == [1]", None),
    "own exception": ("class Negative(ValueError): pass\ndef f(x): raise Negative('below 0')", "try:\n    f(-1)\nexcept ValueError as error:\n    assert str(error) == 'below 0'\nelse:\n    assert False", None),
    "named like a built-in": ("def sum(a, b): return a + b", "assert sum(10, 15) == 25\nassert sum(1, 1) == 2", None),
    "named like a built-in, by entry point": ("def max(a): return sorted(a)[-1]", "assert max([1, 3, 2]) == 3\nassert len([max([1])]) == 1", "max"),
    "named like a built-in, checked": ("def max(a): return sorted(a)[-1]", "def check(candidate):\n    assert candidate([1, 3]) == max(1, 3)\n", "max"),
}  # fmt: skip

HONEST_BY_THE_SYSTEM = (
    "threads",
    "asyncio",
    "files of its own",
    "temporary files",
    "random numbers",
    "standard library",
)
