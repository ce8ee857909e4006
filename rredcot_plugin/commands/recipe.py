"""`rredcot recipe`: the training scripts that come with rredcot, as single files to copy."""

from __future__ import annotations

import difflib
import re
import stat
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import rredcot_plugin
from rredcot_plugin.commands.writing import written

recipe = typer.Typer(
    help="List the training scripts that come with rredcot, or print one as a single file.", no_args_is_help=True
)

MARKER = "common.sh"
"""A file that only the recipes have: where it lies, they are."""

FILES = (".py", ".jsonl", ".yaml")
"""What belongs beside a script; whatever ends otherwise is a script, or goes into one."""

SOURCED = re.compile(r'^source "\$HERE/([^"]+)"$', re.MULTILINE)
HANDED_OVER = re.compile(r'^exec bash "\$HERE/([^"]+)" "\$@"$', re.MULTILINE)
STARTED = re.compile(r'^ +bash "\$RECIPE_DIR/([^"]+)" "\$@"$', re.MULTILINE)
TASK = re.compile(r"^TASK=(\w+)", re.MULTILINE)
"""Of a script for OpenRLHF, and of one for agents: the folder whose data and reward it takes."""
TITLE = re.compile(r"#!.*\n((?:# .+\n)+)")
"""The comment at the head, down to its first empty line."""

COMPARED = re.compile(r"^rredcot, or (?:GRPO|group_norm \(GRPO\)) to compare with \| ")


@recipe.command("list")
def list_recipes() -> None:
    """List the scripts, and the files for data and rewards that they need."""
    folder = _folder()
    scripts = scripts_of(folder)
    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("script", no_wrap=True, style="bold")  # to be copied
    table.add_column("what it trains, on what", overflow="fold")
    for name, path in scripts.items():
        table.add_row(name, Text(_title(path)))
    console.print(table)
    others = ", ".join(name for name, path in names_of(folder).items() if path.suffix in FILES)
    console.print(Text.assemble(("What they need  ", "bold"), others))
    console.print(Text(f"Print one with `rredcot recipe print NAME`; they are in {folder}"), soft_wrap=True)


@recipe.command("print")
def print_recipe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A name from `rredcot recipe list`, with or without its folder and ending."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write this file instead; it must not exist.")
    ] = None,
) -> None:
    """Print a script with everything that it sources inlined, or an unchanged file that scripts need."""
    folder = _folder()
    path = find(name, folder)
    text = single_file(path, folder)
    if out is None:
        typer.echo(text, nl=False)
        return
    if out.exists():
        raise typer.BadParameter(f"out={out}: exists; use another name, or remove it first")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"out={out}: there is no folder {out.parent}")
    with written("out", out):
        out.write_text(text, encoding="utf-8")
    if path.suffix == ".sh":
        out.chmod(out.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    typer.echo(f"written: {out}")


def recipes_folder() -> Path:
    """The folder with ``common.sh``, ``math/`` and ``code/``: of the checkout, else what the wheel installed.

    Raises:
        FileNotFoundError: neither is there; says where to get the recipes.
    """
    checkout = Path(rredcot_plugin.__file__).resolve().parents[1] / "recipes"
    if (checkout / MARKER).is_file():
        return checkout
    try:
        installed = files("rredcot") or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        if file.match(f"share/rredcot/recipes/{MARKER}"):
            folder = Path(str(file.locate())).resolve().parent
            if folder.is_dir():
                return folder
    raise FileNotFoundError(
        "the recipes are not installed; use the folder recipes/ of a checkout, or install rredcot from a wheel"
    )


def scripts_of(folder: Path) -> dict[str, Path]:
    """The scripts that start a run, by their name below the folder."""
    return {name: path for name, path in names_of(folder).items() if path.name.startswith("run_")}


def names_of(folder: Path) -> dict[str, Path]:
    """Everything that can be printed: scripts, and what they need for data and rewards."""
    parts = [*folder.glob("*.*"), *folder.glob("*/*.*")]
    paths = [path for path in parts if path.suffix in (".sh", ".sbatch", *FILES)]
    return {path.relative_to(folder).as_posix(): path for path in sorted(paths)}


def find(name: str, folder: Path) -> Path:
    """The file with this name, or the only one whose name ends so, with its suffix or without.

    Raises:
        typer.BadParameter: there is none, or there are several; names them, or the nearest ones.
    """
    known = names_of(folder)
    if name in known:
        return known[name]
    ends = {
        end: path for end, path in known.items() if name in (path.name, path.stem, end.removesuffix(path.suffix))
    }
    if len(ends) == 1:
        return next(iter(ends.values()))
    if ends:
        raise typer.BadParameter(f"name={name}: expected one of {', '.join(ends)}")
    stems = {word: end for end, path in known.items() for word in (end, path.name, path.stem)}
    near = dict.fromkeys(end for end in known if name in end)
    near |= dict.fromkeys(stems[word] for word in difflib.get_close_matches(name, stems, n=5, cutoff=0.5))
    hint = f"the nearest are {', '.join(near)}" if near else "`rredcot recipe list` shows all"
    raise typer.BadParameter(f"name={name}: no recipe has this name; {hint}")


def single_file(path: Path, folder: Path) -> str:
    """The text of a file; of a script with all that it sources or hands over to, and what it needs as a comment."""
    text = path.read_text(encoding="utf-8")
    if not path.name.startswith("run_"):
        return text
    first, _, rest = _inlined(text, path, folder).partition("\n")
    return f"{first}\n{_needs(path, folder, rest)}{rest}"


def _inlined(text: str, path: Path, folder: Path) -> str:
    def body(found: re.Match[str]) -> str:
        part = (path.parent / found[1]).resolve()
        own = re.sub(r"\A#!.*\n", "", _inlined(part.read_text(encoding="utf-8"), part, folder))
        return f"# ======== {part.relative_to(folder.resolve()).as_posix()} ========\n{own.rstrip()}\n# ========"

    return HANDED_OVER.sub(body, SOURCED.sub(body, text))


def _needs(path: Path, folder: Path, text: str) -> str:
    """The comment that says which files belong beside a printed script, each with the command that prints it."""
    beside = [file for file in names_of(folder).values() if file.parent in (path.parent, folder)]
    files_ = [file for file in beside if file.suffix in FILES]
    files_ += [path.parent / name for name in STARTED.findall(text)]
    outs = {file: file.name for file in files_}
    if task := TASK.search(text):
        outs |= {
            file: f"{task[1]}/{file.name}" for file in sorted((folder / task[1]).glob("*")) if file.suffix in FILES
        }
    name = path.relative_to(folder).as_posix()
    lines = [
        f"# Printed by `rredcot recipe print {name}` of rredcot {rredcot_plugin.__version__}, everything in one file.",
        "# For data and reward, this script needs beside it:",
        *([f"#   mkdir {task[1]}"] if task else []),
        *(
            f"#   rredcot recipe print {file.relative_to(folder).as_posix()} --out {out}"
            for file, out in outs.items()
        ),
        "#",
    ]
    return "\n".join(lines) + "\n"


def _title(path: Path) -> str:
    found = TITLE.match(path.read_text(encoding="utf-8"))
    lines = found[1].replace("# ", "").split("\n") if found else []
    return COMPARED.sub("", " | ".join(filter(None, lines)))


def _folder() -> Path:
    """The recipes; without them one line on the stream for errors, and exit code 1."""
    try:
        return recipes_folder()
    except FileNotFoundError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
