"""Row 77: a newcomer's first minute, as an ordinary user, and the size of what is copied to the nodes."""

import shutil
import statistics
import tempfile
from pathlib import Path

from . import mounts, report

NOBODY = 65534

# The commands of the README as a user, in a namespace with a /dev/fuse that users may open, as on most machines.
# Prints the seconds from the first command to the counters, and ends all that it has begun.
SCRIPT = """
mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse && rm "$1/fuse"
exec setpriv --reuid="$2" --regid="$2" --clear-groups env --chdir="$1" HOME="$1" bash -ec '
  trap "./copperfs unmount --force copper >&2" EXIT
  begin=$EPOCHREALTIME
  ./copperfs launch -n 4 /usr copper >&2
  cat copper/{0,1,2,3}/lib/os-release >&2
  ./copperfs stats --all copper >&2
  end=$EPOCHREALTIME
  echo $(( ${end/./} - ${begin/./} ))'
"""


def row77(bench):
    size = bench.copperfs.stat().st_size / 1e6
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as home:
        shutil.chown(home, NOBODY, NOBODY)
        # The build directory may be closed to other users.
        shutil.chown(shutil.copy(bench.copperfs, Path(home) / "copperfs"), NOBODY, NOBODY)
        command = ["unshare", "--mount", "bash", "-c", SCRIPT, "first-use", home, NOBODY]
        walls = [int(mounts.run(command)) / 1e6 for _ in range(bench.runs)]
    return [
        report.at_most(
            "77a",
            "ordinary user: launch -n 4, a read through each node, stats --all: wall",
            5,
            statistics.median(walls),
            " s",
            walls=walls,
        ),
        report.at_most("77b", "… size of the program", 30, size, " MB"),
    ]
