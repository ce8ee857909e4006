"""The page around traces and curves: one file, no network, light and dark; at most one script, named by its hash."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from string import Template

from rredcot_plugin.report.text import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What the browser may load: nothing; styles stand in the page."""


@dataclass(frozen=True)
class Section:
    """A heading, a sentence under it (may be empty) and finished HTML."""

    heading: str
    note: str
    body: str


@dataclass(frozen=True)
class Extras:
    """What a page can have beyond sections: finished HTML under the lead, more style, one script."""

    intro: str = ""
    style: str = ""
    script: str = ""


def render_page(title: str, lead: str, sections: Sequence[Section], extras: Extras | None = None) -> str:
    """The whole page; ``title``, ``lead``, headings and notes are escaped, bodies are taken as they are.

    A script is allowed by its SHA-256 in the page's Content-Security-Policy, so no other one runs.
    """
    extras = extras or Extras()
    return Template(asset("page.html")).substitute(
        title=escape(title),
        lead=escape(lead),
        body="\n".join(_section(i, section) for i, section in enumerate(sections, start=1)),
        style=asset("page.css") + extras.style,
        intro=extras.intro,
        policy=f"{POLICY}; script-src '{source_hash(extras.script)}'" if extras.script else POLICY,
        script=f"<script>{extras.script}</script>\n" if extras.script else "",
    )


def interactive(intro: str = "") -> Extras:
    """The script and style of pages with traces, and the button for light and dark colours before ``intro``."""
    theme = '<button type="button" id="theme" hidden>dark colours</button>'
    return Extras(theme + intro, asset("report.css"), asset("report.js"))


def asset(name: str) -> str:
    """A file beside this module."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def source_hash(script: str) -> str:
    """How a Content-Security-Policy names an inline script: ``sha256-`` and the digest in base 64."""
    return "sha256-" + b64encode(sha256(script.encode()).digest()).decode()


def _section(number: int, section: Section) -> str:
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return (
        f'<section aria-labelledby="h{number}"><h2 id="h{number}">{escape(section.heading)}</h2>{note}\n'
        f"{section.body}</section>"
    )


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of escaped texts, the first column to the left and the others to the right."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
