"""A plan as tables in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rredcot_plugin.planning.result import Plan
from rredcot_plugin.planning.step import DRIVER, Step

TITLES = {"none": "GRPO", "support": "rredcot", "confidence": "rredcot,\nno probes", "monte_carlo": "MC-GRPO"}
UNITS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def show(plan: Plan, console: Console) -> None:
    """Print all of it."""
    s = plan.setup
    console.print(Text(f"{plan.model.name}, {plan.model.parameters / 1e9:.2f} billion parameters", style="bold"))
    console.print(
        f"{s.prompts:,} prompts x {s.rollouts} = {s.traces:,} rollouts per step of {s.prompt_length:,} + "
        f"{s.response_length:,} tokens on {s.gpus:,} GPUs; {s.segments} segments, {s.probes_a_trace:,} probes of "
        f"{s.probe_tokens} tokens per rollout ({s.backend})",
        soft_wrap=True,
    )
    for table in (_steps(plan), _memory(plan), _transfers(plan)):
        console.print()
        console.print(table)
    console.print()
    for line in plan.warnings():
        console.print(Text.assemble(("! ", "yellow"), line), soft_wrap=True)
    console.print(Text("assumed, not measured:", style="bold"))
    for line in plan.assumptions():
        console.print(Text(f"  {line}"), soft_wrap=True)


def _table(title: str, texts: int, *columns: str) -> Table:
    """The first ``texts`` columns fold in a narrow terminal; numbers keep their lines, so that none loses its unit."""
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False
    )
    for number, column in enumerate(columns):
        is_text = number < texts
        table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    return table


def _steps(plan: Plan) -> Table:
    titles = [_title(step, plan) for step in plan.steps]
    table = _table("Seconds of a step, estimated", 1, "", "tokens", "PFLOP", *titles)
    own = {phase.name: phase for step in plan.steps for phase in step.phases if phase.seconds}
    order = [phase.name for phase in plan.steps[0].phases]
    for name in sorted(own, key=order.index):
        phase = own[name]
        flops = f"{phase.flops.total / 1e15:,.1f}" if phase.flops.total else ""
        seconds = [step.phase(name).seconds for step in plan.steps]
        shown = f"{phase.where}: {name}" if phase.where == DRIVER else name
        table.add_row(shown, _count(phase.tokens), flops, *(f"{s:,.2f}" if s else "–" for s in seconds))
    grpo = plan.steps[0].seconds
    table.add_row("step", "", "", *(f"{step.seconds:,.2f}" for step in plan.steps), style="bold")
    table.add_row("over GRPO", "", "", *(f"{step.seconds / grpo:.3f}" for step in plan.steps))
    table.add_row("share that is added", "", "", *(f"{step.share:.1%}" for step in plan.steps))
    table.add_row("... on the driver", "", "", *(f"{step.driver_share:.2%}" for step in plan.steps))
    return table


def _count(tokens: float) -> str:
    return f"{tokens / 1e6:,.2f} M" if tokens else ""


def _title(step: Step, plan: Plan) -> str:
    many = f" x{plan.setup.samples}" if step.estimator == "monte_carlo" else ""
    return TITLES[step.estimator] + many


def _memory(plan: Plan) -> Table:
    table = _table("GB of memory on each GPU, estimated", 1, "", "", "probes add")
    table.add_column(overflow="fold")
    for phase in plan.memory:
        added = f"{phase.added / 1e9:.2f}" if phase.added else ""
        table.add_row(phase.name, f"{phase.bytes / 1e9:.1f}", added, phase.note)
    d = plan.driver
    parts = f"rows {in_units(d.rows)}, credit {in_units(d.credit)}, probes {in_units(d.probes)}"
    table.add_row("rredcot's on the driver", f"{d.total / 1e9:.1f}", "", parts)
    return table


def _transfers(plan: Plan) -> Table:
    table = _table("Bytes per step through TransferQueue", 2, "", "", "verl", "rredcot")
    for moved in plan.moved:
        what = moved.what if moved.via == "TransferQueue" else f"{moved.what} ({moved.via})"
        size = in_units(moved.bytes)
        table.add_row(what, f"{moved.way} {moved.who}", *(("", size) if moved.ours else (size, "")))
    sums = [in_units(plan.bytes_of(ours=ours)) for ours in (False, True)]
    table.add_row("sum", "", *sums, style="bold")
    driver = [in_units(plan.bytes_of(ours=ours, who=DRIVER)) for ours in (False, True)]
    table.add_row("... of the driver", "", *driver)
    return table


def in_units(size: float) -> str:
    """Bytes in decimal units.

    >>> in_units(1500), in_units(0), in_units(2.5e9)
    ('1.50 kB', '0 B', '2.50 GB')
    """
    for factor, unit in UNITS:
        if size >= factor:
            return f"{size / factor:,.2f} {unit}"
    return f"{size:.0f} B"
