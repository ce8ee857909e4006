"""Programs for the sandbox's verdict: cheats that must earn nothing, honest ones that must earn everything.

Each is (solution, tests, entry point); cheats without tests of their own are put to ``TESTS``.
"""

from __future__ import annotations

TESTS = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == 9\n"

# Functions of the solution side's own process that a cheat may find, and the frames it could forge.
FORGE = """
import json, os
def frame(message):
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, 'big') + body
def everywhere(data):
    for fd in range(3, 64):
        try: os.write(fd, data)
        except OSError: pass
"""
GUESS = """
import os, re
def search(pid, x):
    try:
        spans = [line.split()[0] for line in open(f'/proc/{pid}/maps') if ' rw' in line]
        memory = open(f'/proc/{pid}/mem', 'rb', 0)
    except OSError:
        return []
    found = []
    for span in spans:
        low, high = (int(end, 16) for end in span.split('-'))
        try:
            memory.seek(low)
            found += re.findall(rb'candidate.%d. == (\\d+)' % x, memory.read(min(high - low, 1 << 26)))
        except OSError:
            pass
    return found
"""
MEMORY_CHEATS = {
    "memory of the checker": GUESS
    + "def f(x):\n    for pid in range(os.getpid() + 1, os.getpid() + 40):\n        for found in search(pid, x):\n"
    "            return int(found)\n    return 0",
    "memory of the trainer": GUESS + "def f(x):\n    timeout = open(f'/proc/{os.getppid()}/stat').read()\n"
    "    for found in search(int(timeout.rpartition(')')[2].split()[1]), x):\n        return int(found)\n    return 0",
}
"""Both passed in weak isolation once; the second is held back there only where the kernel has Landlock, or by root."""

EXITS = {
    "os._exit": "import os\nos._exit(0)",
    "os._exit in the call": "import os\ndef f(x): os._exit(0)",
    "sys.exit": "import sys\ndef f(x): sys.exit(0)",
    "sys.exit at load": "import sys\nsys.exit(0)",
    "exit handler": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): raise SystemExit(0)",
    "finaliser": "import os, weakref\nclass A: pass\na = A()\nweakref.finalize(a, os._exit, 0)\ndef f(x):\n    global a\n    a = 0\n    return 0",
    "deleted": "import os\nclass A:\n    def __del__(self): os._exit(0)\ndef f(x):\n    A()\n    return 0",
    "optimised": "import sys, os\ndef f(x): os.execv(sys.executable, [sys.executable, '-O', '-c', 'pass'])",
    "becomes /bin/true": "import os\ndef f(x): os.execv('/bin/true', ['true'])",
    "keyboard interrupt": "def f(x): raise KeyboardInterrupt",
    "generator exit": "def f(x): raise GeneratorExit",
    "cancelled": "import asyncio\ndef f(x): raise asyncio.CancelledError",
    "exception group": "def f(x): raise BaseExceptionGroup('all', [SystemExit(0)])",
    "closes everything": "import os\ndef f(x): os.closerange(0, 64)",
    "recursion": "def f(x): return f(x)",
    "crash": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "other integers": "import ctypes\nctypes.memset(id(4) + 24, 0, 4)\ndef f(x): return 0",
    "kills what it can": "import os, signal\ndef f(x):\n    for pid in (1, os.getppid(), os.getpid() + 1, -1):\n        try: os.kill(pid, signal.SIGKILL)\n        except OSError: pass\n    return 0",
    "alarm": "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, .01)\ndef f(x):\n    signal.pause()\n    return 0",
}  # fmt: skip

PATCHES = {
    "patched assert": "import builtins\nclass A(BaseException): pass\nbuiltins.AssertionError = A\ndef f(x): return 0",
    "patched builtins": "import builtins\nbuiltins.compile = builtins.exec = builtins.abs = lambda *a: True\ndef f(x): return 0",
    "patched import": "import builtins\nbuiltins.__import__ = lambda *a, **k: 4\ndef f(x): return 0",
    "patched types": "import types\ndef f(x):\n    types.FunctionType = int\n    return 0",
    "patched checker": (
        "import sys\nfor m in list(sys.modules.values()):\n    for n in ('_reason', 'check_solution', 'encode', 'send'):\n"
        "        if hasattr(m, n): setattr(m, n, lambda *a: True)\ndef f(x): return 0"
    ),
    "imports the checker": (
        "import sys\nsys.path[:0] = ['/sandbox-code']\ntry:\n    import inside.roles as roles\n    roles._run_tests = lambda *a: None\n"
        "    roles.SolutionGone = Exception\nexcept ImportError:\n    pass\ndef f(x): return 0"
    ),
    "another __main__": "import sys, types\nmain = types.ModuleType('__main__')\nmain.f = lambda x: x * x\nsys.modules['__main__'] = main\ndef f(x): return 0",
    "another __name__": "__name__ = '__tests__'\ndef check(c): pass\ndef candidate(x): return 0\ndef f(x): return 0",
    "trace hook": "import sys\nsys.settrace(lambda *a: sys.exit(0))\ndef f(x): return 0",
    "profile hook": "import sys, threading\nsys.setprofile(lambda *a: None)\nthreading.setprofile(lambda *a: None)\ndef f(x): return 0",
    "audit hook": "import sys, os\nsys.addaudithook(lambda name, args: os._exit(0) if name == 'os.write' else None)\ndef f(x): return 0",
    "except hook": "import sys, os\nsys.excepthook = sys.unraisablehook = lambda *a: os._exit(0)\ndef f(x): raise SystemError",
    "files on the path": "for name in ('math', 'sitecustomize', 'ast', 'traceback'):\n    open(name + '.py', 'w').write('import os; os._exit(0)')\ndef f(x): return 0",
    "frames": (
        "import sys, gc\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, dict) and 'secret' in o:\n"
        "            return 4\n    frame = sys._getframe()\n    while frame:\n        for value in (*frame.f_locals.values(), *frame.f_globals.values()):\n"
        "            if isinstance(value, str) and '== 4' in value and 'f_locals' not in value: return 4\n        frame = frame.f_back\n    return 0"
    ),
    "traceback": (
        "import sys, re\ndef f(x):\n    try: raise ValueError\n    except ValueError as error:\n        frame = error.__traceback__.tb_frame.f_back\n"
        "        frame.f_globals['_find'] = lambda *a: lambda x: re.sub('a', '', 'a')\n    return 0"
    ),
}  # fmt: skip

FAKES = {
    "always equal": "class E:\n    __eq__ = lambda *a: True\ndef f(x): return E()",
    "always equal int": "class E(int):\n    __eq__ = lambda *a: True\n    __hash__ = int.__hash__\ndef f(x): return E(0)",
    "always equal list": "class E(list):\n    __eq__ = lambda *a: True\ndef f(x): return E()",
    "always equal text": "class E(str):\n    __eq__ = lambda *a: True\n    __hash__ = str.__hash__\ndef f(x): return E('0')",
    "always equal float": "class E(float):\n    __eq__ = lambda *a: True\n    hex = lambda *a: '0x1p2'\ndef f(x): return E(0)",
    "claims a class": "class E:\n    __class__ = property(lambda self: int)\n    __index__ = lambda self: 4\n    __eq__ = lambda *a: True\ndef f(x): return E()",
    "metaclass": "class M(type):\n    __eq__ = lambda *a: True\n    __hash__ = type.__hash__\n    __instancecheck__ = lambda *a: True\nclass E(metaclass=M): pass\ndef f(x): return E",
    "a class named int": "class int(int):\n    __eq__ = lambda *a: True\ndef f(x): return int(0)",
    "proxy": "class E:\n    def __getattr__(self, name): return lambda *a: True\ndef f(x): return E()",
    "not implemented": "def f(x): return NotImplemented",
    "ellipsis": "def f(x): return ...",
    "mock": "from unittest.mock import ANY\ndef f(x): return ANY",
    "pickle": "class P:\n    def __reduce__(self): return (exec, ('import os; os._exit(0)',))\ndef f(x): return P()",
    "pickled bytes": "import pickle\nclass P:\n    def __reduce__(self): return (exec, ('import os; os._exit(0)',))\ndef f(x): return pickle.dumps(P())",
    "generator": "def f(x):\n    yield 4\n    yield 9",
    "coroutine": "async def f(x): return x * x",
    "function": "def f(x): return lambda: 4",
    "itself": "def f(x):\n    out = []\n    out.append(out)\n    return out",
    "nan": "def f(x): return float('nan')",
    "boolean": "def f(x): return True",
    "text of the number": "def f(x): return str(x * x)",
    "all answers at once": "def f(x): return [4, 9]",
    "cyrillic name": "def \u0444(x): return x * x\ndef f(x): return 0",
    "state": "calls = []\ndef f(x):\n    calls.append(x)\n    return calls[0] + 2",
    "huge integer": "def f(x): return 1 << (8 << 23)",
    "huge text": "def f(x): return 'x' * (8 << 20)",
    "deep data": "def f(x):\n    for _ in range(10**5): x = [x]\n    return x",
    "deep enough to decode": "def f(x):\n    for _ in range(300): x = [x]\n    return x",
}  # fmt: skip

CHANNELS = {
    "marker": 'print(\'["", true, ""]\\nPASSED\\nOK\', flush=True)\ndef f(x): return 0',
    "every descriptor": FORGE + 'everywhere(b\'["", true, ""]\')\ndef f(x): return 0',
    "verdict as a reply": FORGE + "def f(x):\n    everywhere(frame(['', True, '']))\n    return 0",
    "two replies": FORGE + "def f(x):\n    everywhere(frame(['value', 1, ['i', '4']]) * 2)\n    return 0",
    "reply without a value": FORGE + "def f(x):\n    everywhere(frame(['value', 1]))\n    return 0",
    "reply of an unknown kind": FORGE + "def f(x):\n    everywhere(frame(['passed', 1, None]))\n    return 0",
    "reply with an unknown type": FORGE
    + "def f(x):\n    everywhere(frame(['value', 1, ['o', 'any']]))\n    return 0",
    "reply deeper than the stack": FORGE
    + "def f(x):\n    everywhere((1 << 20).to_bytes(4, 'big') + b'[' * (1 << 20))\n    return 0",
    "reply longer than allowed": FORGE + "def f(x):\n    everywhere(b'\\xff' * 4096)\n    return 0",
    "raises what is no exception": FORGE
    + "def f(x):\n    everywhere(frame(['raised', 1, 'SolutionGone', '']))\n    return 0",
    "raises a name that is no text": FORGE
    + "def f(x):\n    everywhere(frame(['raised', 1, ['StopIteration'], {}]))\n    return 0",
    "loads twice": FORGE + "everywhere(frame(['value', 0, None]) * 2)\ndef f(x): return 0",
    "two processes answer": "import os\ndef f(x):\n    try: return 4 * bool(os.fork()) + 1\n    except OSError: return 0",
    "a thread writes along": FORGE
    + "import threading\ndef f(x):\n    t = threading.Thread(target=everywhere, args=(frame(['value', 2, ['i', '9']]),))\n"
    "    t.start()\n    t.join()\n    return 4",
}

REACHES = {
    "environment": "import os\ndef f(x): return [v for v in os.environ.values() if 'assert' in v] or 0",
    "command lines": "import glob\ndef f(x): return [open(p).read() for p in glob.glob('/proc/[0-9]*/cmdline')]",
    "own memory": "def f(x):\n    open('/proc/self/mem', 'r+b').write(b'x')\n    return 0",
    "ptrace": "import ctypes, os\ndef f(x):\n    assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0\n    return 0",
    "process_vm_readv": "import ctypes, os\ndef f(x):\n    assert ctypes.CDLL(None).process_vm_readv(os.getppid(), 0, 0, 0, 0, 0) == 0\n    return 0",
    "pidfd": "import ctypes, os\ndef f(x):\n    fd = os.pidfd_open(os.getppid())\n    return ctypes.CDLL(None).syscall(438, fd, 5, 0) and 0",
    "datagram": "import socket\ndef f(x):\n    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n    a.sendto(b'x', '\\0rredcot')\n    return 4",
    "abstract socket": "import socket\ndef f(x):\n    s = socket.socket(socket.AF_UNIX)\n    s.bind('\\0rredcot')\n    return 4",
    "leaves files for the tests": "open('/tmp/expected', 'w').write('4')\ndef f(x): return 4",
}  # fmt: skip

EVERY_AND_MAP = "assert all(map(lambda x: f(x) == x * x, [2, -3]))\n"
SEQUENCE = "class S:\n    def __getitem__(self, i):\n        assert f(i) == i * i\n        if i > 3: raise IndexError\nfor _ in S(): pass\n"
PROPERTY = "class S:\n    @property\n    def right(self):\n        assert f(2) == 4\n        return True\n"
PROTOCOLS = {
    "stop iteration": ("def f(x): raise StopIteration", TESTS),
    "stop in all": ("def f(x): raise StopIteration", EVERY_AND_MAP),
    "stop in for": ("def f(x): raise StopIteration", "for y, x in zip(map(f, [2]), [2]): assert y == x * x\n"),
    "stop in next": ("def f(x): raise StopIteration", "assert next(map(f, [2]), 4) == 4\n"),
    "stop in iter": ("def f(x): raise StopIteration", "for y in iter(lambda: f(2), None): assert y == 4\n"),
    "subclass of stop": ("class S(StopIteration): pass\ndef f(x): raise S", EVERY_AND_MAP),
    "namesake of stop": ("class StopIteration(Exception): pass\ndef f(x): raise StopIteration", EVERY_AND_MAP),
    "stop async": (
        "def f(x): raise StopAsyncIteration",
        "import asyncio\nclass A:\n    def __aiter__(self): return self\n    async def __anext__(self):\n        return f(2)\n"
        "async def main():\n    async for y in A(): assert y == 4\nasyncio.run(main())\n",
    ),
    "empty result in next": ("def f(x): return []", "assert all(map(lambda x: next(iter(f(x))) == x, [2]))\n"),
    "index in iteration": ("def f(x): raise IndexError", SEQUENCE),
    "index in a container": ("def f(x): raise IndexError", SEQUENCE.replace("for _ in S(): pass", "assert 7 not in S()")),
    "index, raised again": (
        "def f(x): raise IndexError",
        SEQUENCE.replace("        assert f(i) == i * i", "        try: y = f(i)\n        except LookupError: raise\n        assert y == i * i"),
    ),
    "index through a with": (
        "def f(x): raise IndexError",
        "import contextlib\n" + SEQUENCE.replace("assert f(i)", "with contextlib.suppress(KeyError): assert f(i)"),
    ),
    "attribute with default": ("def f(x): raise AttributeError", PROPERTY + "assert getattr(S(), 'right', True)\n"),
    "attribute by hasattr": ("def f(x): raise AttributeError", PROPERTY + "assert not hasattr(S(), 'wrong') and not hasattr(S(), 'right')\n"),
    "key in a mapping": (
        "def f(x): raise KeyError",
        "from collections.abc import Mapping\nclass M(Mapping):\n    def __len__(self): return 1\n    def __iter__(self): return iter([2])\n"
        "    def __getitem__(self, key):\n        assert f(key) == 4\n        return 4\nassert M().get(2, 4) == 4\n",
    ),
    "type in a length hint": (
        "def f(x): raise TypeError",
        "class L:\n    def __iter__(self): return iter(())\n    def __length_hint__(self):\n        assert f(2) == 4\n        return 0\nassert list(L()) == []\n",
    ),
    "own len": ("def f(x): return 0\ndef len(x): return 4", "assert f(2) != 1 and len(f(2)) == 4\n"),
    "own comparison": ("def f(x): return 0\ndef abs(x): return 0\ndef all(x): return True\ndef isinstance(*a): return True", "assert isinstance(f(2), int) and abs(f(2) - 4) < 1e-6 and all([f(2)])\n"),
    "own comparison, one call": ("def f(x): return 0\ndef abs(x): return 0", "assert abs(f(2) - 4) < 1e-6\n"),
    "patched math": ("import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 0", "import math\nassert math.isclose(f(2), 4)\n"),
    "replaced math": (
        "import sys, types\nfake = sys.modules['math'] = types.ModuleType('math')\nfake.isclose = lambda *a: True\ndef f(x): return 0",
        "import math\nassert math.isclose(f(2), 4)\n",
    ),
    "import hook": (
        "import sys\nclass F:\n    def find_spec(self, *a): import os; os._exit(0)\nsys.meta_path.insert(0, F())\ndef f(x): return 0",
        "import statistics\nassert statistics.mean([f(2)]) == 4\n",
    ),
    "patched json": ("import json\njson.dumps = lambda *a: '4'\njson.loads = lambda *a: 4\ndef f(x): return 0", "import json\nassert json.dumps(f(2)) == '4'\n"),
    "patched unittest": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef f(x): return 0",
        "import unittest\nunittest.TestCase().assertEqual(f(2), 4)\n",
    ),
    "int that is always less": ("class E(int):\n    __lt__ = __gt__ = __sub__ = lambda *a: True\ndef f(x): return E(9)", "assert f(2) < 5\n"),
    "list that contains all": ("class E(list):\n    __contains__ = lambda *a: True\n    __len__ = lambda s: 1\ndef f(x): return E()", "assert 4 in f(2)\n"),
    "dict that has every key": ("class E(dict):\n    __missing__ = __getitem__ = lambda *a: 4\ndef f(x): return E()", "assert f(2)['square'] == 4\n"),
    "text that ends with all": ("class E(str):\n    endswith = lambda *a: True\ndef f(x): return E('0')", "assert f(2).endswith('4')\n"),
    "nan in a tolerance": ("def f(x): return float('nan')", "assert abs(f(2) - 4) < 1e-6\n"),
    "nan in a sort": ("def f(x): return [float('nan')]", "assert sorted(f(2)) == [4]\n"),
    "lookalike text": ("def f(x): return '4\u200b'", "assert f(2) == '4'\n"),
    "many digits": ("def f(x): return 10 ** 10000", "assert str(f(2)) == '4'\n"),
    "colliding keys": ("def f(x): return {i * (2**61 - 1) for i in range(1, 100000)}", "assert f(2) == {4}\n"),
    "changes the argument": ("def f(x):\n    x.clear()\n    return x", "x = [2]\nassert f(x) == x\n"),
    "changes what it was given": ("def f(x):\n    x[:] = [4]", "x = [2]\nf(x)\nassert x == [4]\n"),
    "exits where all is caught": ("import os\ndef f(x): os._exit(0)", "try:\n    f(1)\nexcept BaseException:\n    pass\n"),
    "dies where all is caught": ("import ctypes\ndef f(x): ctypes.string_at(0)", "import contextlib\nwith contextlib.suppress(BaseException): f(1)\n"),
}  # fmt: skip

HANGING = {
    "infinite iteration": "import itertools\nclass E(list):\n    __iter__ = lambda self: itertools.count()\ndef f(x): return E([4])",
    "infinite generator": "def f(x):\n    return sum(iter(int, 1))",
    "output flood": "def f(x):\n    while True: print('x' * 9999)",
    "memory": "def f(x): return bytearray(4 << 30)",
}

BY_THE_SYSTEM = {**EXITS, **CHANNELS, **REACHES, **MEMORY_CHEATS, **HANGING}
"""What the means of isolation has a part in; the other cheats are a matter of the language."""

CHEATS: dict[str, tuple[str, str]] = {
    **{name: (solution, TESTS) for name, solution in {**BY_THE_SYSTEM, **PATCHES, **FAKES}.items()},
    **PROTOCOLS,
}

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
