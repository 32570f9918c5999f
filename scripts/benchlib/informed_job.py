#!/usr/bin/env python3
"""A training job that takes what the cache holds: mini-batches of the package copperfs.

A clock takes the place of the GPU, as in loader.py: the step of a mini-batch takes its entries divided by
--rate. The files begin with their numbers in 8 bytes, so that what was read tells by itself whether each
entry came exactly once.

Prints a line of JSON for each epoch, with --trace one for each mini-batch, and one at the end.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter

import copperfs
import numpy as np
from loader import Clock, wait_until

NUMBER_BYTES = 8


class Noted:
    """A sampler that notes what it gives: how each mini-batch was drawn, and the processor time."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.drawn, self.cpu = [], 0.0

    def __getattr__(self, name):
        return getattr(self.sampler, name)

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        return NotedEpoch(self, iter(self.sampler))

    def confirm(self):
        """Confirms the oldest mini-batch."""
        begun = time.thread_time()
        batch = self.sampler.confirm()
        self.cpu += time.thread_time() - begun
        self.last = batch
        return batch


class NotedEpoch:
    """An epoch of a `Noted` sampler."""

    def __init__(self, noted, epoch):
        self.noted, self.epoch = noted, epoch

    def __iter__(self):
        return self

    def __next__(self):
        begun, cpu = time.time(), time.thread_time()
        try:
            return next(self.epoch)
        finally:
            self.noted.cpu += time.thread_time() - cpu
            self.noted.drawn.append((begun, time.time() - begun))

    def close(self):
        """Ends the epoch early."""
        self.epoch.close()


class Job:
    """One run."""

    def __init__(self, options):
        self.options = options
        self.data = copperfs.connect(options.mount).dataset(options.dataset)
        self.layout = self.data.chunks().layout
        self.loop = copperfs.batches(
            self.data, options.batch, number_of, fill=options.fill, seed=options.seed,
            substitute=not options.plain, threads=options.threads,
        )  # fmt: skip
        self.noted = self.loop.sampler = Noted(self.loop.sampler)
        self.filler = FillerClock(self.loop)
        self.clock = None
        self.longest, self.wrong, self.entries = 0.0, 0, 0

    def stopped(self):
        return self.options.stop and os.path.exists(self.options.stop)

    def wait_gate(self, epoch):
        """Waits until this epoch may begin."""
        gate = self.options.gate and os.path.join(self.options.gate, f"epoch{epoch}")
        while gate and not os.path.exists(gate):
            time.sleep(0.01)

    def epoch(self, number):
        """An epoch; what it says of itself."""
        started = time.time()
        start, stalled = self.clock.free, self.clock.stalled
        seen = np.zeros(len(self.data), np.int64)
        sums = Counter()
        longest = 0.0
        self.noted.drawn.clear()
        for place, numbers in enumerate(self.loop):
            waited = time.monotonic() - self.clock.free
            longest = max(longest, waited)
            batch = self.noted.last
            np.add.at(seen, numbers, 1)
            sums.update(hits=batch.hits, misses=batch.misses, substituted=batch.substituted)
            if self.options.trace:
                self.trace(number, place, batch, waited)
            self.clock.step(len(numbers))
            self.entries += len(numbers)
            if self.stopped():
                break
        wait_until(self.clock.free)
        self.longest = max(self.longest, longest)
        whole = not self.stopped()
        self.wrong += int(np.count_nonzero(seen > 1) + (np.count_nonzero(seen == 0) if whole else 0))
        return {
            "epoch": number,
            "start": started,
            "end": self.clock.unix + self.clock.free,
            "seconds": self.clock.free - start,
            "entries": int(seen.sum()),
            "missing": int(np.count_nonzero(seen == 0)),
            "twice": int(np.count_nonzero(seen > 1)),
            "stall_s": self.clock.stalled - stalled,
            "longest_wait_s": longest,
            "filled": self.loop._filler.fetched,
            **sums,
        }

    def trace(self, epoch, place, batch, waited):
        """Tells of which chunks a mini-batch was drawn, when, and what was missed."""
        chunks = [self.layout.unit_of(int(entry)) % self.layout.stripes for entry in batch.entries]
        hit, missed = chunks[: batch.hits], chunks[batch.hits : batch.hits + batch.misses]
        drawn, took = self.noted.drawn[place]
        said = {"batch": place, "in": epoch, "drawn": drawn, "took": took, "waited": waited}
        said |= {"at": time.time(), "hits": Counter(hit), "misses": Counter(missed)}
        print(json.dumps(said), flush=True)

    def run(self):
        """All epochs; what the job as a whole says."""
        time.sleep(max(0.0, self.options.start - time.time()))
        self.clock = Clock(self.options.rate)
        cpu = time.process_time()
        epoch = 0
        while epoch < self.options.epochs and not self.stopped():
            if self.options.gate:
                self.wait_gate(epoch)
                self.clock.free = time.monotonic()
            print(json.dumps(self.epoch(epoch)), flush=True)
            epoch += 1
        return {
            "job": True,
            "start": self.clock.unix + self.clock.begun,
            "end": self.clock.unix + self.clock.free,
            "seconds": self.clock.free - self.clock.begun,
            "entries": self.entries,
            "stall_s": self.clock.stalled,
            "longest_wait_s": self.longest,
            "wrong": self.wrong,
            "failed_fills": self.loop._filler.failed,
            "cpu_s": time.process_time() - cpu,
            "sampler_cpu_s": self.noted.cpu,
            "filler_cpu_s": self.filler.seconds,
            "look_cpu_s": self.filler.looking,
        }


class FillerClock:
    """The processor time of the threads that fill a chunk, which end with each epoch, and the part of it
    that goes into the choice of entries."""

    def __init__(self, loop):
        self.filler = loop._filler
        self.seconds = self.looking = 0.0
        stop, next_piece = self.filler.stop, self.filler.next_piece

        def noted_stop():
            self.note()
            stop()

        def noted_piece():
            begun = time.thread_time()
            piece = next_piece()
            self.looking += time.thread_time() - begun
            return piece

        self.filler.stop, self.filler.next_piece = noted_stop, noted_piece

    def note(self):
        """Adds the time of threads that are about to end."""
        for thread in self.filler._threads:
            if thread.is_alive():
                self.seconds += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def number_of(contents):
    """The number at the beginning of a file."""
    return int.from_bytes(contents[:NUMBER_BYTES], "little")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mount")
    parser.add_argument("dataset")
    parser.add_argument("--rate", type=float, default=0, help="entries/s that it consumes; 0: all")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2, help="that read mini-batches")
    parser.add_argument("--fill", type=int, default=4, help="threads that fill the loading chunk")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="no substitutes: a plain permutation")
    parser.add_argument("--start", type=float, default=0, help="begin at this time (Unix, seconds)")
    parser.add_argument("--gate", help="epoch N begins when the file epochN is in this directory")
    parser.add_argument("--stop", help="end early when this file is there")
    parser.add_argument("--trace", action="store_true", help="a line for each mini-batch")
    return parser.parse_args()


def main():
    done = Job(arguments()).run()
    print(json.dumps(done), flush=True)
    sys.exit(1 if done["wrong"] else 0)


if __name__ == "__main__":
    main()
