"""Time, CPU time and the kernel's caches."""

import mmap
import os
import statistics
import time
from dataclasses import dataclass

TICK_S = 0.05


def cpu_seconds(pid):
    """CPU seconds that process `pid` has used, ended threads included, to the nanosecond.

    The kernel's clock of another process (clock_getcpuclockid): /proc/PID/stat counts in ticks of
    10 ms, which is more than a daemon uses in a warm run.
    """
    return time.clock_gettime((~pid << 3) | 2)


@dataclass
class Cost:
    """What one run took."""

    ops: float
    wall: float
    cpu: float
    bytes: int = 0
    # The part of `cpu` that daemons used.
    daemon_cpu: float = 0.0

    @property
    def cpu_rate(self):
        """Operations per CPU-second of client and daemons."""
        return self.ops / self.cpu


class DaemonClock:
    """The CPU time that a set of daemons uses while a block runs, and the wall time."""

    def __init__(self, pids):
        self.pids = pids
        self.cpu = self.wall = 0.0

    def __enter__(self):
        self._cpu = [cpu_seconds(pid) for pid in self.pids]
        self._wall = time.monotonic()
        return self

    def __exit__(self, *_):
        self.wall = time.monotonic() - self._wall
        after = [cpu_seconds(pid) for pid in self.pids]
        self.cpu = sum(after) - sum(self._cpu)


def drop_caches(what):
    """Empties kernel caches: 1 pages, 2 dentries and inodes without pages, 3 both."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write(str(what))
    # The inodes' FORGETs travel after the write returns.
    time.sleep(0.3)


def refaulted_pages():
    """Pages of files that were read again after the kernel had taken them away, on this machine."""
    with open("/proc/vmstat") as file:
        return next(
            int(line.split()[1]) for line in file if line.startswith("workingset_refault_file")
        )


def back_memory(size):
    """Touches `size` bytes and frees them at once.

    A virtual machine gives free memory back to its host (free page reporting, two seconds after it was
    freed), and getting it again costs microseconds a page. That would be charged to whoever fills a
    cache, and never to native, whose cache is full. No effect on bare metal.
    """
    piece = bytes(1 << 20)
    with mmap.mmap(-1, size) as memory:
        while memory.tell() < size:
            memory.write(piece[: size - memory.tell()])


def status_kb(pid, key):
    """A line of /proc/PID/status, in KiB."""
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1])
    raise KeyError(key)


def switches(pid):
    """Context switches of all threads, by thread name: (voluntary, involuntary)."""
    counts = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/status") as file:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        voluntary = int(fields["voluntary_ctxt_switches"])
        counts[thread] = (fields["Name"], voluntary, int(fields["nonvoluntary_ctxt_switches"]))
    return counts


def wait_until(condition, timeout_s, what):
    """Polls `condition` until it holds; TimeoutError names `what`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {timeout_s} s")
        time.sleep(TICK_S)


def median(values):
    """The median, nan of nothing."""
    values = list(values)
    return statistics.median(values) if values else float("nan")


def load_average():
    """The one-minute load: how quiet the machine was."""
    return os.getloadavg()[0]
