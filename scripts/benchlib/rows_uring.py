"""Row 76: FUSE over io_uring against the device, both between bare servers, which answer from memory."""

import subprocess
from dataclasses import replace
from pathlib import Path

from . import report
from .clock import median
from .informed import REPOSITORY
from .rows_sampling import origin_of
from .rows_training_reads import READERS, SIZES, bare_mount, middle, warm_passes
from .training import make_files

ENABLE = Path("/sys/module/fuse/parameters/enable_uring")
SMALL, *LARGE = SIZES
LINKED = ("-Wl,--no-as-needed", "-luring")
"""The library stands before the source, where a linker that links only what is needed drops it."""


def row76(bench):
    """Files of three sizes without the kernel's pages, by turns from a server on the device and one on
    io_uring."""
    try:
        former = ENABLE.read_text()
        ENABLE.write_text("Y")
    except OSError as error:
        # The kernel has no FUSE over io_uring, or the container may not change it.
        print(f"row 76 is skipped: {error}", flush=True)
        return [report.reported(f"76{letter}", "FUSE over io_uring", f"skipped: {error}") for letter in "abcde"]
    try:
        return rows_of(measured(bench))
    finally:
        ENABLE.write_text(former)


def measured(bench):
    """The passes, by server, size and number of readers."""
    bash = '. "$1"/scripts/lib.sh; need_packages liburing-dev'
    subprocess.run(["bash", "-ec", bash, "-", REPOSITORY], check=True)
    origin = origin_of(bench)
    data = replace(bench.data, base=origin)
    passes = {}
    for size, count in SIZES.items():
        directory = make_files(origin / f"reads-{size}", count, size)
        paths = sorted(str(path.relative_to(origin)) for path in directory.glob("*/*.bin"))
        on_device, on_uring = bare_mount(bench, directory), bare_mount(bench, directory, "bare_uring", *LINKED)
        with on_device as device, on_uring as uring:
            targets = {"device": device, "uring": uring}
            for readers in (1, READERS) if size == SMALL else (1,):
                lists = [data.list(f"reads-{reader}", paths[reader::readers]) for reader in range(readers)]
                # A pass takes half a second at most, and small files are close to the bar.
                turns = bench.runs * (5 if size == SMALL else 3)
                for name, of_name in warm_passes(targets, turns, bench, lists, count).items():
                    passes[name, size, readers] = of_name
                    rate, cpu = middle(of_name, "rate"), middle(of_name, "cpu")
                    print(f"  {name} {size} {readers} readers: {rate:.0f} files/s, {cpu:.0f} µs", flush=True)
    return passes


def over_device(passes, field, size, readers):
    """A figure with io_uring over the one with the device, by turns."""
    turns = zip(passes["uring", size, readers], passes["device", size, readers])
    return median(getattr(uring, field) / getattr(device, field) for uring, device in turns)


def rows_of(passes):
    """The table's rows."""
    rates = {
        name: " and ".join(f"{middle(passes[name, SMALL, readers], 'rate'):,.0f}" for readers in (1, READERS))
        for name in ("uring", "device")
    }
    cpu = [over_device(passes, "cpu", SMALL, readers) for readers in (1, READERS)]
    large = [over_device(passes, "rate", size, 1) for size in LARGE]
    what = f"bare FUSE servers, items of 110 KB, 1 and {READERS} readers, io_uring; the device"
    shown = f"{rates['uring']} files/s; {rates['device']} files/s"
    return [
        report.reported("76a", what, shown),
        report.reported(
            "76b", "… rate, io_uring over device, 1 reader", f"{over_device(passes, 'rate', SMALL, 1):.2f}"
        ),
        report.reported("76c", f"… {READERS} readers", f"{over_device(passes, 'rate', SMALL, READERS):.2f}"),
        report.reported(
            "76d",
            f"… CPU of readers and server, io_uring over device, 1 and {READERS} readers",
            "{:.2f} and {:.2f}".format(*cpu),
        ),
        report.reported("76e", "… rate, 1 reader, items of 1 MB and of 4 MB", "{:.2f} and {:.2f}".format(*large)),
    ]
