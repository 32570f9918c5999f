"""A cgroup whose memory is used up, so that the kernel kills the largest process in it."""

import os
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 256 << 20
EXCEED_S = 20.0

# Takes memory until the kernel has killed a process of the group. That is the victim: see Group.exceed.
EATER = """
import sys
group, events = sys.argv[1], sys.argv[2]
def kills():
    text = open(f"{group}/{events}").read().split("\\n")
    return next((int(line.split()[1]) for line in text if line.startswith("oom_kill ")), 0)
open(f"{group}/cgroup.procs", "w").write(str(__import__("os").getpid()))
before, held = kills(), []
while kills() == before:
    held.append(bytearray(b"x" * (1 << 20)))
"""


class Group:
    """See the module. Its processes are a daemon, its watchdog, and their successors."""

    def __init__(self, name):
        v1 = Path("/sys/fs/cgroup/memory")
        self.above = v1 if v1.exists() else Path("/sys/fs/cgroup")
        self.path = self.above / name
        self.path.mkdir()
        if v1.exists():
            self.events = "memory.oom_control"
            (self.path / "memory.limit_in_bytes").write_text(str(LIMIT))
        else:
            self.events = "memory.events"
            (self.above / "cgroup.subtree_control").write_text("+memory")
            (self.path / "memory.max").write_text(str(LIMIT))

    def add(self, pid):
        (self.path / "cgroup.procs").write_text(str(pid))

    def exceed(self, victim):
        """Uses its memory up. Returns when the kernel has killed the process `victim` of it."""
        Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
        command = [sys.executable, "-c", EATER, self.path, self.events]
        # The kernel may kill it as well, when the victim has not given its memory back yet.
        subprocess.run([str(word) for word in command], timeout=EXCEED_S, check=False)

    def remove(self):
        end = time.monotonic() + 10
        while time.monotonic() < end:
            inside = (self.path / "cgroup.procs").read_text().split()
            if not inside:
                break
            time.sleep(0.1)
        try:
            os.rmdir(self.path)
        except OSError as error:
            print(f"kills: {self.path} stays: {error}", file=sys.stderr)
