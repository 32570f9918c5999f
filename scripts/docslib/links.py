"""Checks the relative links of README.md, CONTRIBUTING.md, CHANGELOG.md and docs/.

Each link must lead to a file and, with an anchor, to a heading of it. Every page must be in docs/SUMMARY.md,
and the error texts of docs/TROUBLESHOOTING.md must be texts of the program or of the system.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\(<?([^()\s<>]+)>?\)")
PAGES = [Path(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def prose(page: Path) -> list[tuple[int, str]]:
    """The lines outside of code blocks, with their numbers."""
    lines, code = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            lines.append((number, line))
    return lines


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub and mdbook make them."""
    found: dict[str, int] = {}
    names = set()
    for _, line in prose(page):
        heading = re.match(r"#{1,6} +(.*?) *#*$", line)
        if not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        seen = found.get(name, 0)
        found[name] = seen + 1
        names.add(f"{name}-{seen}" if seen else name)
    return names


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for number, line in prose(page):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = Path(os.path.normpath(page.parent / path)) if path else page
            if not file.exists():
                wrong.append(f"{page}:{number}: no such file: {target}")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                wrong.append(f"{page}:{number}: no such heading: {target}")
    return wrong


def outside_of_the_book(pages: list[Path]) -> list[str]:
    """The pages of docs/ that the table of contents lacks."""
    listed = set(LINK.findall(Path("docs/SUMMARY.md").read_text(encoding="utf-8")))
    inside = [page.relative_to("docs") for page in pages if page.parts[0] == "docs"]
    return [f"docs/SUMMARY.md: lacks {page}" for page in inside if str(page) not in listed | {"SUMMARY.md"}]


def unknown_texts() -> list[str]:
    """Texts of the tables of copperfs' and the system's messages that neither prints."""
    # Strings of the source go on after a backslash and a line's end.
    source = "".join(
        re.sub(r"\\\n\s*", "", file.read_text(encoding="utf-8"))
        for root in ("src", "overlay/src", "fuse/src")
        for file in Path(root).rglob("*.rs")
    )
    system = {os.strerror(code) for code in errno.errorcode}
    wrong = []
    for number, line in prose(Path("docs/TROUBLESHOOTING.md")):
        first = line.split("|")[1] if line.startswith("| ") else ""
        for text in re.findall(r"`([^`$]+)`", first):
            if text not in system and text not in source:
                wrong.append(f"docs/TROUBLESHOOTING.md:{number}: the program does not print: {text}")
    return wrong


def main() -> int:
    """Prints what is wrong. Returns 1 if anything is."""
    pages = PAGES + sorted(Path("docs").rglob("*.md"))
    wrong = [problem for page in pages for problem in broken(page)]
    wrong += outside_of_the_book(pages) + unknown_texts()
    print("\n".join(wrong) or f"{len(pages)} pages: all links lead to files and headings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
