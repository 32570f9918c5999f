"""Hosts of a run's own (scripts/hosts.sh) and a mount on each of them."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from .mounts import flatten, run

SCRIPT = Path(__file__).resolve().parent.parent / "hosts.sh"


class Hosts:
    """Hosts 1 to `count`, which go away with the block."""

    def __init__(self, count, mtu=1500, net="10.78.0"):
        self.count = count
        own = {
            "HOSTS_PREFIX": f"cfb{os.getpid() % 10000}",
            "HOSTS_NET": net,
            "HOSTS_MTU": str(mtu),
        }
        self.environment = dict(os.environ, **own)

    def __enter__(self):
        try:
            self.control("up", self.count)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(
            [SCRIPT, "down"],
            env=self.environment,
            check=False,
            timeout=120,
            stderr=subprocess.DEVNULL,
        )

    def control(self, *words):
        """A command of hosts.sh, to its end."""
        command = [str(word) for word in (SCRIPT, *words)]
        subprocess.run(command, env=self.environment, check=True, timeout=120)

    def start(self, number, *command, **how):
        """Starts a program on a host."""
        words = [str(word) for word in (SCRIPT, "exec", number, *command)]
        how.setdefault("stdout", subprocess.PIPE)
        return subprocess.Popen(words, env=self.environment, text=True, **how)

    def output(self, number, *command, timeout=120):
        """What a program on a host prints."""
        process = self.start(number, *command)
        out, _ = process.communicate(timeout=timeout)
        if process.returncode != 0:
            raise RuntimeError(f"{command} on host {number} ended with {process.returncode}")
        return out

    def reach(self, scratch):
        """A script that reaches a host as ssh does."""
        path = Path(scratch) / "reach"
        exports = "".join(
            f"export {name}={self.environment[name]}\n"
            for name in ("HOSTS_PREFIX", "HOSTS_NET", "HOSTS_MTU")
        )
        path.write_text(
            f'#!/bin/sh\nhost=$1; shift\n{exports}exec {SCRIPT} exec "${{host#h}}" sh -c "$*"\n'
        )
        path.chmod(0o755)
        return path


class Tree:
    """Mounts on hosts, one tree: the first host is the root."""

    def __init__(self, copperfs, hosts, scratch, flags):
        self.copperfs, self.hosts = copperfs, hosts
        self.mountpoint = Path(scratch) / "mnt"
        self.mountpoint.mkdir(exist_ok=True)
        secret, names = Path(scratch) / "secret", Path(scratch) / "names"
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(32).hex() + "\n")
        names.write_text("".join(f"h{number}\n" for number in range(1, hosts.count + 1)))
        self.flags = ["--hosts", names, "--secret-file", secret, "--exclude", "", *flags]
        self.mounted = []

    def mount(self, numbers):
        """Mounts on several hosts at once."""
        started = {
            number: self.hosts.start(
                number, self.copperfs, "mount", *self.flags, self.mountpoint
            )
            for number in numbers
        }
        for number, process in started.items():
            process.communicate(timeout=180)
            if process.returncode != 0:
                raise RuntimeError(f"no mount on host {number}")
            self.mounted.append(number)

    def stats(self, number):
        """The flat counters of one node."""
        return dict(flatten(self.json_stats(number)))

    def json_stats(self, number):
        """The counters of one node, as they are printed."""
        out = self.hosts.output(number, self.copperfs, "stats", "--json", self.mountpoint)
        return json.loads(out)

    def unmount(self):
        """Takes the mounts away, as far as they are there."""
        ended = [
            self.hosts.start(
                number, self.copperfs, "unmount", "--force", self.mountpoint, stderr=subprocess.DEVNULL
            )
            for number in self.mounted
        ]
        for process in ended:
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def mounted(copperfs, hosts, scratch, flags):
    """A mount on every host."""
    tree = Tree(copperfs, hosts, scratch, flags)
    try:
        tree.mount(range(1, hosts.count + 1))
        yield tree
    finally:
        tree.unmount()


def together(hosts, script, *arguments, lead=None, timeout=600):
    """Runs a Python script on every host, beginning at the same moment; what each prints, as JSON."""
    start = time.time() + (lead if lead is not None else 2.0 + 0.06 * hosts.count)
    started = [
        hosts.start(number, sys.executable, "-c", script, start, *arguments)
        for number in range(1, hosts.count + 1)
    ]
    answers = []
    for number, process in enumerate(started, 1):
        out, _ = process.communicate(timeout=timeout)
        if process.returncode != 0:
            raise RuntimeError(f"the reader on host {number} ended with {process.returncode}")
        answers.append(json.loads(out.strip().splitlines()[-1]))
    return answers


def simulated(copperfs, *flags):
    """What the model says."""
    return json.loads(run([copperfs, "simulate", "tree", "--json", *flags]))
