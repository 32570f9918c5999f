"""Results: what was measured, against which bar, as JSON and as Markdown."""

import json
import math
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .clock import load_average

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


@dataclass
class Result:
    """One figure against its bar."""

    row: str
    what: str
    bar: str
    figure: str
    bindfs: str = ""
    met: bool | None = None
    detail: dict = field(default_factory=dict)

    @property
    def verdict(self):
        return {True: "met", False: "**missed**", None: "reported"}[self.met]


def _beside(other, unit=""):
    """The figure of another filesystem: bindfs's, or a text that names it."""
    if isinstance(other, str):
        return other
    return "" if math.isnan(other) else f"{other:.2f}{unit}"


def at_least(row, what, bar, ratio, bindfs=math.nan, **detail):
    """A ratio to native that should not be lower than `bar`."""
    other = _beside(bindfs)
    return Result(row, what, f"≥ {bar}", f"{ratio:.2f}", other, bool(ratio >= bar), detail)


def at_most(row, what, bar, value, unit="", bindfs=math.nan, **detail):
    """A figure that should not be higher than `bar`."""
    other = _beside(bindfs, unit)
    return Result(
        row, what, f"≤ {bar}{unit}", f"{value:.2f}{unit}", other, bool(value <= bar), detail
    )


def exactly(row, what, expected, value, bindfs="", **detail):
    """A count that should be this one."""
    return Result(row, what, f"= {expected:,}", f"{value:,}", bindfs, value == expected, detail)


def within(row, what, value, bound):
    """A count that should not be higher than this one."""
    return Result(row, what, f"≤ {bound:,}", f"{value:,}", "", value <= bound)


def reported(row, what, figure, bindfs="", bar="reported", **detail):
    """A figure without a bar."""
    return Result(row, what, bar, figure, bindfs, None, detail)


def machine(copperfs, runs):
    """What was measured on, and what."""
    cpu = "unknown"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
    version = subprocess.run([copperfs, "--version"], capture_output=True, text=True, check=False)
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "copperfs": version.stdout.strip(),
        "load_before": round(load_average(), 2),
        "runs": runs,
        "reclaims_idle_pages": reclaims_idle_pages(),
    }


def in_order(result):
    """Row 2 before row 10."""
    digits = re.match(r"\d+", result.row)[0]
    return int(digits), result.row[len(digits) :]


def markdown(results):
    """A table, rows in order."""
    lines = [
        "| row | what | bar | copperfs | bindfs | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in sorted(results, key=in_order):
        cells = [result.row, result.what, result.bar, result.figure, result.bindfs, result.verdict]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_document(path, about, results):
    """Puts the machine and the table between the document's two marks."""
    text = path.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    path.write_text(f"{text[:start]}\n{described(about)}\n\n{markdown(results)}{text[end:]}")


def described(about):
    """The machine in a sentence."""
    reclaim = (
        "; pages idle for 10 s are taken out of the page cache (DAMON)"
        if about["reclaims_idle_pages"]
        else ""
    )
    return (
        f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_gib']} GiB; Linux {about['kernel']}; ext4; "
        f"Python {about['python']}; {about['copperfs']}, release build; {about['runs']} runs{reclaim}. "
        f"Load of one minute before the first row {about['load_before']}."
    )


def reclaims_idle_pages():
    """Whether this machine takes idle pages away (DAMON's pageout scheme), as some virtual ones do."""
    actions = Path("/sys/kernel/mm/damon/admin/kdamonds").glob("*/contexts/*/schemes/*/action")
    return any(action.read_text().strip() == "pageout" for action in actions)


def save(directory, about, results):
    """Writes results.json and results.md; earlier results of rows that were not run stay."""
    path = directory / "results.json"
    kept = []
    if path.exists():
        old = json.loads(path.read_text())
        rows = {result.row.split(".")[0] for result in results}
        kept = [Result(**old) for old in old["results"] if old["row"].split(".")[0] not in rows]
    merged = sorted(kept + results, key=in_order)
    out = {"machine": about, "results": [asdict(result) for result in merged]}
    path.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")
    (directory / "results.md").write_text(markdown(merged))
    return merged
