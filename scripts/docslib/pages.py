"""Runs the commands of the pages, as a reader types them.

`pages.py list PAGE...` prints every ```sh block with the reason beside it, if it is not run.
`pages.py runnable PAGE...` prints the pages with a block that is run.
`pages.py script PAGE DIRECTORY` writes the page's blocks there, and a script that runs them in one shell.
`pages.py compare PAGE DIRECTORY` compares the ```text block that follows a command with its output.

A block is run as it stands, in the order of the page. Only `…` is replaced: in `NAME=…` it stands for the
reader's own value, which is the one that NAME has in the environment. A block that cannot be run has a line
directly above it: *Not run by our tests: REASON.* A block that begins with `# as root` is run by root, in the
checkout, after the others.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REASON = re.compile(r"^\*Not run by our tests: (.+)\.\*$")
# A number with its unit; sizes, times and counts differ between machines.
NUMBER = re.compile(
    r"\d[\d.,:]*(?: ?(?:[KMGT]i?B|B|ms|us|µs|s|m|min|h|%)(?:/s)?(?![A-Za-z]))*(?:(?<=[smh])\d+s)?"
)


class Block(NamedTuple):
    """A fenced block: the line of its first line, its language and text, and the reason above it."""

    line: int
    language: str
    text: str
    reason: str | None


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    fence, kept, above = None, [], ""
    for number, line in enumerate(Path(page).read_text(encoding="utf-8").splitlines(), 1):
        if fence is None and line.startswith("```"):
            fence, kept = line[3:], []
        elif fence is not None and line == "```":
            reason = REASON.match(above)
            text = "".join(one + "\n" for one in kept)
            found.append(Block(number - len(kept), fence, text, reason and reason[1]))
            fence = None
        elif fence is not None:
            kept.append(line)
        if fence is None and line.strip():
            above = line
    return found


def commands(page: str) -> list[Block]:
    """The blocks of commands of a page."""
    return [block for block in blocks(page) if block.language == "sh"]


def own_values(text: str) -> str:
    """Puts the value of the environment in place of each `NAME=…`."""
    return re.sub(r"\b([A-Z_]+)=…", r'\1="${\1:?}"', text)


def write_script(page: str, directory: Path) -> None:
    """A block is a file of its own, in which lines have the numbers that they have on the page."""
    start = ["set -eE -o pipefail", f"trap 'echo \"{page}: line $LINENO: status $?\" >&2' ERR"]
    scripts = {"page.sh": ["cd", *start], "root.sh": ["cd /src/copperfs", *start]}
    for block in commands(page):
        if block.reason:
            continue
        script = scripts["root.sh" if block.text.startswith("# as root") else "page.sh"]
        name = directory / f"{block.line}.sh"
        name.write_text("\n" * (block.line - 1) + own_values(block.text), encoding="utf-8")
        out = shlex.quote(str(directory / f"{block.line}.out"))
        script.append(f"echo '--- {page}:{block.line}'")
        script.append(f"exec 3>&1 4>&2 >{out} 2>&1")
        script.append(f"began=$SECONDS; . {shlex.quote(str(name))} </dev/null")
        script.append("wait; exec >&3 2>&4; echo \"    $((SECONDS - began)) s\"")
    for script_name, script in scripts.items():
        (directory / script_name).write_text("\n".join(script) + "\n", encoding="utf-8")


def normal(line: str) -> str:
    """The line without figures and without the widths of columns."""
    return " ".join(NUMBER.sub("#", line).split())


def shown(page: str) -> Iterator[tuple[Block, Block]]:
    """Commands that ran, each with the block of output that follows it on the page."""
    found = blocks(page)
    for command, output in zip(found, found[1:]):
        if command.language == "sh" and not command.reason and output.language == "text":
            yield command, output


def compare(page: str, directory: Path) -> list[str]:
    """Every line that the page shows must come, in this order; `...` stands for anything."""
    wrong = []
    for command, output in shown(page):
        came = (directory / f"{command.line}.out").read_text(encoding="utf-8")
        lines = iter([normal(line) for line in came.splitlines()])
        for number, line in enumerate(output.text.splitlines(), output.line):
            pattern = re.compile(".*".join(re.escape(part) for part in normal(line).split("...")))
            if line.strip() in ("", "...") or any(pattern.fullmatch(came_line) for came_line in lines):
                continue
            wrong.append(f"{page}: line {number}: not printed: {line}\n--- printed was:\n{came}")
            break
    return wrong


def list_blocks(pages: list[str]) -> int:
    """Prints the blocks that are not run, and how many are."""
    run = 0
    for page in pages:
        for block in commands(page):
            if block.reason:
                print(f"SKIPPED: {page}:{block.line}: {block.reason}")
            else:
                run += 1
    print(f"{run} blocks of commands are run")
    return 0


def main(action: str, *arguments: str) -> int:
    """Does the action that the head of this file describes. Returns the exit status."""
    if action == "list":
        return list_blocks(list(arguments))
    if action == "runnable":
        print("\n".join(page for page in arguments if any(not block.reason for block in commands(page))))
        return 0
    page, directory = arguments
    if action == "script":
        write_script(page, Path(directory))
        return 0
    wrong = compare(page, Path(directory))
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
