"""A preprocessor of mdbook: makes links that leave docs/ work in the book.

Pages of the repository's root that docs/SUMMARY.md lists, such as ../README.md, move into the book beside
the others. Links to other files, such as ../config/full.toml, lead to `git-repository-url` of book.toml.
Without one the book shows the file's name and no link.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from typing import Any

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")


def chapters(items: list[Any]) -> Iterator[dict[str, Any]]:
    """All chapters with a file, whatever their depth."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            yield from chapters(chapter["sub_items"])
            if chapter["path"]:
                yield chapter


def relinked(text: str, page: str, rename: dict[str, str], repository: str | None) -> str:
    """The page's text with its links as the book needs them. `page` is relative to the repository."""

    def link(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, hash_sign, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if found == "docs/SUMMARY.md":  # the table of contents beside each page
            return label
        inside = rename.get(found) or (found[len("docs/") :] if found.startswith("docs/") else None)
        if inside:
            return f"{mark}[{label}]({posixpath.relpath(inside, start(page, rename))}{hash_sign}{anchor})"
        if repository:
            return f"{mark}[{label}]({repository}/blob/HEAD/{found}{hash_sign}{anchor})"
        return label

    lines, code = [], False
    for line in text.splitlines(keepends=True):
        code ^= bool(FENCE.match(line))
        lines.append(line if code else LINK.sub(link, line))
    return "".join(lines)


def start(page: str, rename: dict[str, str]) -> str:
    """The directory of the page in the book."""
    inside = rename.get(page) or page[len("docs/") :]
    return posixpath.dirname(inside) or "."


def main() -> None:
    """Reads the book from standard input, and writes it to standard output."""
    context, book = json.load(sys.stdin)
    repository = context["config"].get("output", {}).get("html", {}).get("git-repository-url")
    found = list(chapters(book.get("items") or book["sections"]))
    # mdbook has made index.md of each README.md by now.
    sources = [posixpath.normpath(posixpath.join("docs", chapter["source_path"])) for chapter in found]
    rename = {source: source for source in sources if not source.startswith("docs/")}
    for chapter, source in zip(found, sources):
        chapter["content"] = relinked(chapter["content"], source, rename, repository)
        if source in rename:
            chapter["path"] = "index.md" if source == "README.md" else rename[source]
            chapter["source_path"] = rename[source]
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    # `supports RENDERER` asks whether a renderer needs this: all do.
    if sys.argv[1:2] != ["supports"]:
        main()
