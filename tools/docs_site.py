"""What mkdocs.yml needs beyond plugins: files outside docs/ that a page links to, and formulas as MathML.

On GitHub a page links to ``../../recipes/math/README.md``; a site holds docs/ only. So every linked file of the
repository is taken along under ``source/``, pages (``.md``) rendered, and links are turned towards it. A link to a
folder becomes its text. Formulas become MathML when the site is built, so that it loads no script for them.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import SimpleTextInlineProcessor
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
TAKEN = "source"
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)((?:#[^)\s]*)?)(?=\))")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INTERVAL = re.compile(r"<td>(?=[^<]{0,12}\d[^<]{0,4} ?\[[^<]{1,20}\]</td>)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


class Subscripts(Extension):
    """The underscore of V̂_0 begins no emphasis, as on GitHub: the letter before it ends in a combining accent."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(SimpleTextInlineProcessor("(?<=\u0302)(_)"), "subscripts", 175)


def on_config(config: Any) -> Any:
    """Pages and docstrings alike."""
    config.markdown_extensions.append(Subscripts())
    return config


def in_repository(page: str, target: str) -> str:
    """The path of a link's target in the repository; ``page`` as the site names it."""
    folder = dirname(page.removeprefix(f"{TAKEN}/") if page.startswith(f"{TAKEN}/") else f"docs/{page}")
    return normpath(join(folder, target))


def in_site(path: str) -> str:
    """Where the site has a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{TAKEN}/{path}"


def targets(page: str, text: str) -> set[str]:
    """Files outside docs/ that a page links to."""
    found = {in_repository(page, link[1]) for link in LINK.finditer(FENCE.sub("", text))}
    return {path for path in found if not path.startswith(("docs/", "..")) and (ROOT / path).is_file()}


def on_files(files: Any, config: Any) -> Any:
    """Add every file that a page links to, and what those link to in turn."""
    todo = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while todo:
        for path in sorted(targets(*todo.pop())):
            name = in_site(path)
            if files.get_file_from_path(name) is None:
                level = InclusionLevel.NOT_IN_NAV
                files.append(File.generated(config, name, abs_src_path=str(ROOT / path), inclusion=level))
                if path.endswith(".md"):
                    todo.append((name, (ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links out of docs/ towards the files taken along; a link to a folder becomes its text."""
    own = page.file.src_uri

    def turned(link: re.Match[str]) -> str:
        path = in_repository(own, link[1])
        return relpath(in_site(path), dirname(own) or ".") + link[2] if (ROOT / path).is_file() else link[0]

    def without_folders(link: re.Match[str]) -> str:
        return link[1] if (ROOT / in_repository(own, link[2])).is_dir() else link[0]

    parts = re.split(f"({FENCE.pattern})", markdown, flags=FENCE.flags)
    for i in range(0, len(parts), 2):
        plain = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)\)", without_folders, parts[i])
        parts[i] = LINK.sub(turned, plain)
    return "".join(parts)


def on_page_content(content: str, **_: Any) -> str:
    """LaTeX as MathML; a number and its interval stay on one line."""

    def rendered(found: re.Match[str]) -> str:
        latex = html.unescape(found[2]).strip()
        return convert(latex[2:-2], display="block" if found[1] == "div" else "inline")

    return INTERVAL.sub('<td class="interval">', FORMULA.sub(rendered, content))
