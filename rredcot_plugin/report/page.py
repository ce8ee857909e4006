"""The page around traces and curves: one file, no network, no script, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template

from rredcot_plugin.report.html import escape


@dataclass(frozen=True)
class Section:
    """A heading, a sentence under it (may be empty) and finished HTML."""

    heading: str
    note: str
    body: str


def render_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page; ``title``, ``lead``, headings and notes are escaped, bodies are taken as they are."""
    template = Template(resources.files(__package__).joinpath("page.html").read_text("utf-8"))
    body = "\n".join(_section(section) for section in sections)
    return template.substitute(title=escape(title), lead=escape(lead), body=body)


def _section(section: Section) -> str:
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return f"<h2>{escape(section.heading)}</h2>{note}\n{section.body}"


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of escaped texts, the first column to the left and the others to the right."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
