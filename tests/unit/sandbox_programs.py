"""Programs for the sandbox's verdict: cheats that must earn nothing. The honest ones are in sandbox_honest.py.

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
    "raises what is not an exception": FORGE
    + "def f(x):\n    everywhere(frame(['raised', 1, 'SolutionGone', '']))\n    return 0",
    "raises a name that is not text": FORGE
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
