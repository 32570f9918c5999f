"""Checks the relative links of README.md, CONTRIBUTING.md, CHANGELOG.md and docs/.

Each link must lead to a file and, with an anchor, to a heading of it. Every page must be in docs/SUMMARY.md,
and the error texts of docs/TROUBLESHOOTING.md must be texts of the program or of the system. Commands of
copperfs in the text and in blocks that are not run must have the names and options of docs/cli.md.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\(<?([^()\s<>]+)>?\)")
# Commands that copperfs gives itself, and the first words of a file's format.
INTERNAL = ("daemon", "watchdog", "store")
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


def helps() -> dict[str, str]:
    """The help of each command, by its name."""
    sections = re.split(r"^## ", Path("docs/cli.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {section.partition("\n")[0].strip(): section for section in sections}


def unknown_commands(page: Path, known: dict[str, str]) -> list[str]:
    """The commands of copperfs on a page that are not those of the command line."""
    wrong = []
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    commands = re.findall(r"^(copperfs [a-z].*)", blocks, flags=re.MULTILINE)
    for command in commands + re.findall(r"(?<!`)`(copperfs [a-z][^`\n]*)`", text):
        words = command.split(" -- ")[0].split()
        name = max((" ".join(words[:n]) for n in (2, 3) if " ".join(words[:n]) in known), default=None)
        if name is None and words[1] in INTERNAL:
            continue
        if name is None:
            wrong.append(f"{page}: no such command: {command}")
            continue
        options = re.findall(r"(?<=\s)--[a-z][a-z-]*", command.split(" -- ")[0].split("#")[0])
        wrong += [
            f"{page}: {name} has no {one}" for one in options if not re.search(rf"{one}\b", known[name])
        ]
    return wrong


def main() -> int:
    """Prints all errors. Returns 1 if there is one."""
    pages = PAGES + sorted(Path("docs").rglob("*.md"))
    wrong = [problem for page in pages for problem in broken(page)]
    wrong += outside_of_the_book(pages) + unknown_texts()
    known = helps()
    for page in pages:
        if page not in (Path("docs/cli.md"), Path("CHANGELOG.md")) and "adr" not in page.parts:
            wrong += unknown_commands(page, known)
    print("\n".join(wrong) or f"{len(pages)} pages: all links lead to files and headings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
