r"""Write train.parquet and val.parquet with mathematical problems in verl's data format.

    python prepare_data.py --source open-rs --out data/open_rs --val-size 256 --eval aime24 --eval math500
    python prepare_data.py --source my_problems.jsonl --out data/mine --answer-column label

- A question occurs once: the same text but for case, white space and LaTeX spacing is the same question, in both
  splits and against every benchmark given with `--exclude` or `--eval`.
- Which questions are held out depends on their text only (a hash), not on the order of the source or the seed.
- Answers that math-verify cannot read are dropped: no response to them could be right.
- The same arguments give the same files; their sha256 are printed and kept in OUT/checksums.txt.

Sources from the Hugging Face hub need `pip install datasets`; files and reasoning-gym do not.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

if __package__ in (None, ""):  # run or loaded as a file
    sys.path.insert(0, str(Path(__file__).resolve().parent))
import reward

INSTRUCTION = "Let's think step by step and put the final answer within \\boxed{}."
QUESTION_COLUMNS = ("question", "problem", "prompt")
ANSWER_COLUMNS = ("answer", "final_answer", "ground_truth", "expected_answer")
SOLUTION_COLUMNS = ("solution", "rationale", "response")
NO_ANSWER = {"proof", "notfound", "none", "na", "n/a", "unknown"}
"""What data sets write for problems without a single answer (spaces removed, lower case)."""
FILES = (".jsonl", ".json", ".parquet", ".csv")
SPLITS = ("train", "val")
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_EXTRA = [("index", pa.int64()), ("split", pa.string()), ("question", pa.string()), ("solution", pa.string())]
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(_MESSAGE)),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        ("extra_info", pa.struct([*_EXTRA, ("references", pa.list_(pa.string()))])),
    ]
)
"""The same for every file, with or without solutions: verl joins several validation files into one data set."""


@dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face hub; `answer` None: it is read off the solution."""

    path: str
    question: str
    answer: str | None
    solution: str | None
    split: str = "train"
    name: str | None = None


SOURCES = {
    "numina": HubSource("AI-MO/NuminaMath-CoT", "problem", None, "solution"),
    "open-rs": HubSource("knoveleng/open-rs", "problem", "answer", "solution"),
    "gsm8k": HubSource("openai/gsm8k", "question", "answer", None, name="main"),
}
BENCHMARKS = {
    "aime24": HubSource("HuggingFaceH4/aime_2024", "problem", "answer", None),
    "aime25": HubSource("math-ai/aime25", "problem", "answer", None, "test"),
    "math500": HubSource("HuggingFaceH4/MATH-500", "problem", "answer", "solution", "test"),
    "amc23": HubSource("math-ai/amc23", "question", "answer", None, "test"),
    "minerva": HubSource("math-ai/minervamath", "question", "answer", None, "test"),
    "gsm8k-test": HubSource("openai/gsm8k", "question", "answer", None, "test", "main"),
}


class DataError(ValueError):
    """Something about the arguments or the source that the user can put right."""


@dataclass(frozen=True)
class Problem:
    """One question with its answer and the solutions that reach it."""

    question: str
    answer: str
    references: tuple[str, ...] = ()


@dataclass
class Counts:
    """How many rows came in, and why some went."""

    dropped: Counter[str] = field(default_factory=Counter)
    read: int = 0

    def __str__(self) -> str:
        gone = "".join(f"; {reason}: {count}" for reason, count in sorted(self.dropped.items()))
        return f"{self.read} rows read{gone}"


def question_key(question: str) -> str:
    r"""What two wordings of the same question have in common.

    >>> question_key("Find  $x$,\\; if\n$2x=4$.") == question_key("find $x$, if $2 x = 4$.")
    True
    """
    plain = re.sub(r"\\(?:[,;:! ]|(?:quad|qquad|left|right|displaystyle|limits)(?![a-zA-Z]))", "", question)
    plain = plain.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return re.sub(r"[\s$~]+|\\[()\[\]]", "", plain).lower()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# ---- reading ----------------------------------------------------------------------------------------------------


Located = tuple[str, dict[str, Any]]
"""Where a row stands, and the row."""


def read_file(path: Path) -> list[Located]:
    """The rows of a .jsonl, .json (a list), .parquet or .csv file; DataError naming file and line if it is broken."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix == ".jsonl":
        return list(_read_lines(path))
    if path.suffix == ".json":
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path}: no JSON: {error}") from error
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{path}: expected a list of objects")
    elif path.suffix == ".parquet":
        rows = pd.read_parquet(path).to_dict("records")
    elif path.suffix == ".csv":
        rows = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    else:
        raise DataError(f"{path}: got a {path.suffix or 'nameless'} file, expected one of {', '.join(FILES)}")
    return [(f"{path}, row {i}", row) for i, row in enumerate(rows, start=1)]


def _read_lines(path: Path) -> Iterator[Located]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: no JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {number}: got {type(row).__name__}, expected an object")
            yield f"{path}, line {number}", row


def read_hub(source: HubSource) -> Iterable[Mapping[str, Any]]:
    """The rows of a data set on the hub; DataError with the way out without `datasets` or without a connection."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(f"{source.path}: needs `pip install datasets` (or give a local file)") from error
    try:
        return load_dataset(source.path, source.name, split=source.split)
    except Exception as error:  # datasets, hub and network raise what they like
        raise DataError(
            f"{source.path}: could not be loaded ({type(error).__name__}: {error}). Without a connection: download it"
            " elsewhere, and give the file as --source or --exclude"
        ) from error


@dataclass(frozen=True)
class Columns:
    """Which column holds what; None: look for a usual name."""

    question: str | None = None
    answer: str | None = None
    solution: str | None = None


def _pick(row: Mapping[str, Any], name: str | None, usual: Sequence[str], where: str, what: str) -> str | None:
    """The name of a column; DataError where it was asked for by name and is not there."""
    if name is not None and name not in row:
        raise DataError(
            f"{where}: no column {name!r} (there are {', '.join(map(str, row))}); choose with --{what}-column"
        )
    return name if name is not None else next((usual_name for usual_name in usual if usual_name in row), None)


def to_problem(row: Mapping[str, Any], columns: Columns, where: str) -> Problem:
    """One row as a problem (the answer "" if there is none); DataError naming the row for missing columns."""
    question = _pick(row, columns.question, QUESTION_COLUMNS, where, "question")
    if question is None:
        raise DataError(
            f"{where}: none of the columns {', '.join(QUESTION_COLUMNS)}; choose with --question-column"
        )
    answer = _pick(row, columns.answer, ANSWER_COLUMNS, where, "answer")
    solution = _pick(row, columns.solution, SOLUTION_COLUMNS, where, "solution")
    if answer is None and solution is None:
        raise DataError(
            f"{where}: no answer and no solution column; choose with --answer-column, --solution-column"
        )
    worked = _text(row[solution]) if solution is not None else ""
    final = _text(row[answer]) if answer is not None else ""
    if answer is None or reward.extract_answer(final) is not None:  # a solution in the answer's place, as in GSM8K
        worked = worked or final
        final = reward.extract_answer(final or worked) or ""
    return Problem(_text(row[question]), final, (worked,) if worked else ())


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    is_missing = value is None or (isinstance(value, float) and value != value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if is_missing else str(value).strip()


def read_problems(source: str, columns: Columns, hub: Mapping[str, HubSource]) -> Iterator[Problem]:
    """The problems of a file or of a known data set, in its order."""
    path = Path(source)
    rows: Iterator[tuple[str, Mapping[str, Any]]]
    if source in hub:
        known = hub[source]
        columns = Columns(
            columns.question or known.question,
            columns.answer or known.answer,
            columns.solution or known.solution,
        )
        rows = ((f"{source}, row {i}", row) for i, row in enumerate(read_hub(known), start=1))
    elif path.suffix in FILES:
        rows = iter(read_file(path))
    else:
        raise DataError(f"{source!r}: expected one of {', '.join([*hub])}, or a file ending in {', '.join(FILES)}")
    return (to_problem(row, columns, where) for where, row in rows)


# ---- cleaning ---------------------------------------------------------------------------------------------------


def deduplicate(
    problems: Iterable[Problem], excluded: Mapping[str, set[str]], counts: Counts
) -> dict[str, Problem]:
    """Questions by their key, each once and none of the benchmarks'; solutions of duplicates are kept as references.

    Of a question that has two different answers nothing is kept: one of them is wrong.
    """
    kept: dict[str, Problem] = {}
    contradicted: set[str] = set()
    for problem in problems:
        counts.read += 1
        key = question_key(problem.question)
        reason = _why_not(problem, key, excluded)
        if reason is not None:
            counts.dropped[reason] += 1
        elif key not in kept:
            kept[key] = problem
        else:
            counts.dropped["duplicate question"] += 1
            kept[key] = _merged(kept[key], problem)
            if reward.normalise(problem.answer) != reward.normalise(kept[key].answer):
                contradicted.add(key)
    counts.dropped["question with different answers"] += len(contradicted)
    return {key: problem for key, problem in kept.items() if key not in contradicted}


def _why_not(problem: Problem, key: str, excluded: Mapping[str, set[str]]) -> str | None:
    if not key:
        return "no question"
    if not problem.answer or re.sub(r"\s|\\text|[{}]", "", problem.answer).lower() in NO_ANSWER:
        return "no single answer"
    return next((f"also in {name}" for name, keys in excluded.items() if key in keys), None)


def _merged(first: Problem, second: Problem) -> Problem:
    return Problem(first.question, first.answer, tuple(dict.fromkeys(first.references + second.references)))


def split_and_cut(
    problems: Mapping[str, Problem], val_size: int, max_rows: int | None, seed: int
) -> dict[str, list]:
    """`val`: the questions with the smallest hashes; `train`: the rest in an order that follows from the seed.

    `max_rows` bounds both together. The held-out questions do not depend on the seed, so that runs with different
    seeds share their validation set.
    """
    by_hash = sorted(problems, key=_digest)
    if val_size >= len(by_hash) and val_size:
        raise DataError(f"--val-size {val_size}: leaves nothing to train on, there are {len(by_hash)} problems")
    val, train = by_hash[:val_size], by_hash[val_size:]
    train = sorted(train, key=lambda key: _digest(f"{seed}:{key}"))
    if max_rows is not None:
        train = train[: max(0, max_rows - val_size)]
    return {"train": [problems[key] for key in train], "val": [problems[key] for key in val]}


def drop_unparsable(problems: Mapping[str, Problem], counts: Counts, threads: int) -> dict[str, Problem]:
    """Those whose answer math-verify can read."""
    from tqdm import tqdm

    with ThreadPoolExecutor(max_workers=threads) as executor:
        checks = executor.map(lambda problem: reward.is_parsable(problem.answer), problems.values())
        bar = tqdm(checks, total=len(problems), desc="answers read", disable=None, mininterval=1.0)
        readable = list(bar)
    counts.dropped["answer that math-verify cannot read"] += len(problems) - sum(readable)
    return {key: problem for (key, problem), fine in zip(problems.items(), readable, strict=True) if fine}


# ---- writing ----------------------------------------------------------------------------------------------------


def make_row(problem: Problem, index: int, split: str, data_source: str, instruction: str) -> dict[str, Any]:
    """One problem as a row of verl's data set."""
    content = f"{problem.question}\n\n{instruction}" if instruction else problem.question
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "index": index,
            "split": split,
            "question": problem.question,
            "solution": problem.references[0] if problem.references else "",
            "references": list(problem.references),
        },
    }


def write(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> str:
    """Write a parquet file, complete or not at all; the line for checksums.txt."""
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), part)
    part.replace(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f"{path}: {len(rows)} rows, sha256 {digest}")
    return f"{digest}  {path.name}\n"


def data_source_of(source: str) -> str:
    """The name under which verl logs a source: `val-core/<name>/acc/mean@1`."""
    stem = Path(source).stem if Path(source).suffix in FILES else source
    return re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")


def check_free(out: Path, names: Iterable[str], force: bool) -> None:
    """DataError if a file would be overwritten."""
    there = [str(out / name) for name in names if (out / name).exists()]
    if there and not force:
        raise DataError(f"{', '.join(there)}: exists; choose another --out, or --force to replace it")


def reasoning_gym_rows(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The demo's tasks, scored by rredcot_plugin/demo/reward.py and not by the reward of this recipe."""
    try:
        from rredcot_plugin.demo.prepare_data import make_rows
        from rredcot_plugin.demo.tasks import TASKS
    except ImportError as error:
        raise DataError(f"--source reasoning-gym: needs `pip install 'rredcot[demo]'` ({error})") from error
    sizes = {"train": (arguments.max_rows or 640) - arguments.val_size, "val": arguments.val_size}
    if sizes["train"] < 1:
        raise DataError(
            f"--val-size {arguments.val_size}: leaves nothing of --max-rows {arguments.max_rows or 640}"
        )
    return {
        split: make_rows(split, size, arguments.seed, sorted(TASKS))  # type: ignore[arg-type]
        for split, size in sizes.items()
    }


def math_rows(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Train, val and benchmark rows; prints what was dropped."""
    columns = Columns(arguments.question_column, arguments.answer_column, arguments.solution_column)
    benchmarks = {name: list(read_problems(name, Columns(), BENCHMARKS)) for name in _benchmarks(arguments)}
    excluded = {name: {question_key(p.question) for p in problems} for name, problems in benchmarks.items()}
    counts = Counts()
    problems = deduplicate(read_problems(arguments.source, columns, SOURCES), excluded, counts)
    if arguments.max_rows is not None:  # read some more answers than are needed, not all of a large source
        cut = split_and_cut(problems, 0, arguments.max_rows + arguments.max_rows // 4, arguments.seed)["train"]
        held_out = sorted(problems, key=_digest)[: arguments.val_size + arguments.val_size // 4]
        wanted = {question_key(problem.question) for problem in cut} | set(held_out)
        problems = {key: problem for key, problem in problems.items() if key in wanted}
    problems = drop_unparsable(problems, counts, arguments.workers)
    splits = split_and_cut(problems, arguments.val_size, arguments.max_rows, arguments.seed)
    print(f"{arguments.source}: {counts}")
    name, text = data_source_of(arguments.source), arguments.instruction
    files = {split: [make_row(p, i, split, name, text) for i, p in enumerate(splits[split])] for split in SPLITS}
    for benchmark in arguments.eval:
        source = data_source_of(benchmark)
        rows = enumerate(benchmarks[benchmark])
        files[source] = [make_row(p, i, "test", source, text) for i, p in rows if p.answer]
    return files


def _benchmarks(arguments: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys([*arguments.exclude, *arguments.eval]))


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; see `--help`."""
    parser = argparse.ArgumentParser(
        description="Mathematical problems as train.parquet and val.parquet in verl's data format.",
        epilog=f"Known benchmarks for --exclude and --eval: {', '.join(BENCHMARKS)}.",
    )
    add = parser.add_argument
    add("--source", required=True, help=f"{', '.join(SOURCES)}, reasoning-gym, or a file ({', '.join(FILES)})")
    add("--out", required=True, type=Path, metavar="DIR", help="folder to write to, made if absent")
    add("--val-size", type=int, default=128, metavar="N", help="held-out problems (default: 128)")
    add("--max-rows", type=int, metavar="N", help="at most this many problems, held-out ones included")
    add("--seed", type=int, default=0, help="order of the training problems (default: 0)")
    add("--question-column", metavar="NAME", help=f"default: the first of {', '.join(QUESTION_COLUMNS)}")
    add("--answer-column", metavar="NAME", help=f"default: the first of {', '.join(ANSWER_COLUMNS)}")
    add("--solution-column", metavar="NAME", help=f"default: the first of {', '.join(SOLUTION_COLUMNS)}")
    add(
        "--exclude",
        action="append",
        default=[],
        metavar="NAME_OR_FILE",
        help="drop its questions; may be repeated",
    )
    add(
        "--eval",
        action="append",
        default=[],
        metavar="NAME_OR_FILE",
        help="--exclude, and write it as <name>.parquet",
    )
    add("--instruction", default=INSTRUCTION, help="put behind every question; '' for none")
    add("--workers", type=int, default=reward.WORKERS, metavar="N", help="processes that read answers")
    add("--force", action="store_true", help="replace files that are there")
    arguments = parser.parse_args(argv)
    if arguments.val_size < 0:
        parser.error(f"--val-size {arguments.val_size}: allowed are whole numbers from 0")
    if arguments.max_rows is not None and arguments.max_rows <= arguments.val_size:
        parser.error(f"--max-rows {arguments.max_rows}: must be more than --val-size {arguments.val_size}")
    if arguments.workers < 1:
        parser.error(f"--workers {arguments.workers}: allowed are whole numbers from 1")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 when the files are written, 1 when something is wrong with arguments or source."""
    arguments = parse_arguments(argv)
    try:
        names = [*SPLITS, *map(data_source_of, arguments.eval)]
        if len(set(names)) < len(names):
            raise DataError(f"--eval: two files of the same name among {', '.join(names)}; rename one")
        check_free(arguments.out, [*(f"{name}.parquet" for name in names), "checksums.txt"], arguments.force)
        reward.WORKERS = arguments.workers
        is_gym = arguments.source == "reasoning-gym"
        files = reasoning_gym_rows(arguments) if is_gym else math_rows(arguments)
        arguments.out.mkdir(parents=True, exist_ok=True)
        schema = None if is_gym else SCHEMA
        lines = [write(arguments.out / f"{name}.parquet", rows, schema) for name, rows in files.items() if rows]
        (arguments.out / "checksums.txt").write_text("".join(lines))
    except (DataError, ImportError) as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
