#!/usr/bin/env python3
"""Draws mini-batches by the residency that a daemon tells, and counts look-ups or time.

`passes`: look-ups of the first pass for several seeds, and of a whole epoch, which draws from complete
chunks only. `draws`: how long it takes to draw a mini-batch. `residency`: how long it takes to ask.
Prints a line of JSON.
"""

import json
import sys
import time

import copperfs
import numpy as np
from copperfs import ioctl
from copperfs.connection import Connection
from copperfs.filler import Filler

WAIT_S = 300


def ready(data):
    """Waits until the daemon has loaded the manifest and answers in time; the slowest answer until then.

    The package gives up after a second, which is not what is measured here."""
    ask = Connection(lambda: ioctl.users_socket(data.mount.path)).request
    end, soon, slowest = time.monotonic() + WAIT_S, 0, 0.0
    while soon < 5:
        begin = time.monotonic()
        try:
            ask("GET", f"/v1/datasets/{data.name}/residency", seconds=60)
            took = time.monotonic() - begin
            soon, slowest = soon + 1 if took < 0.5 else 0, max(slowest, took)
        except copperfs.CopperError as error:
            soon = 0
            if begin > end:
                sys.exit(f"sampling_job: {error}")
        time.sleep(0.2)
    return slowest


def complete_chunk(data, left, wanted):
    """Waits until a complete chunk has so many entries of `left`; returns its entries as a mask."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        chunks = data.join()
        for chunk in chunks.resident:
            mask = chunks.layout.mask(chunk.number)
            whole = chunk.state != "loading" and bool(np.all(data.resident(max_age=0)[mask]))
            if whole and np.count_nonzero(left & mask) >= wanted:
                return mask
        time.sleep(0.05)
    sys.exit(f"sampling_job: no complete chunk within {WAIT_S} s: {data.chunks().resident}")


def begun(data, batch, seed):
    """A sampler and its epoch, begun."""
    sampler = copperfs.SubstitutableSampler(data, batch, seed=seed)
    epoch = iter(sampler)
    return epoch, epoch.plan


def first_pass(data, batch, seed):
    """The look-ups of each mini-batch of a first pass over a resident part."""
    epoch, plan = begun(data, batch, seed)
    part = int(np.count_nonzero(complete_chunk(data, plan.left, batch)))
    found = []
    for _ in range(part // batch):
        before = plan.lookups
        next(epoch)
        if plan.passes > 1:
            break
        found.append(plan.lookups - before)
    epoch.close()
    return found


def passes(data, batch, seeds):
    """See the module."""
    first = [lookups for seed in range(seeds) for lookups in first_pass(data, batch, seed)]
    epoch, plan = begun(data, batch, seeds)
    given = hits = 0
    while plan.remaining:
        complete_chunk(data, plan.left, min(batch, plan.remaining))
        entries = next(epoch)
        given, hits = given + len(entries), hits + int(np.count_nonzero(data.resident()[entries]))
    rest = next(epoch, None)
    return {
        "first": first,
        "passes": plan.passes,
        "lookups": plan.lookups,
        "entries": len(data),
        "given": given + len(rest or ()),
        "hits": hits,
    }


def draws(data, batch, seeds):
    """See the module. Draws from one complete chunk until it is used up; those in which the daemon is
    asked stand by themselves."""
    asked, request = [], data.mount._questions.request

    def noted(*args, **kwargs):
        asked.append(args[1])
        return request(*args, **kwargs)

    data.mount._questions.request = noted
    took = {"took": [], "asking": []}
    for seed in range(seeds):
        epoch, plan = begun(data, batch, seed)
        part = int(np.count_nonzero(complete_chunk(data, plan.left, batch)))
        for _ in range(part // batch):
            asked.clear()
            begin = time.perf_counter()
            next(epoch)
            seconds = time.perf_counter() - begin
            took["asking" if asked else "took"].append(seconds)
        epoch.close()
    return {**took, "part": part, "entries": len(data)}


def residency(data, times):
    """See the module: whole answers, and those that say that nothing has changed.

    The package asks ten times a second at most, so that the daemon asks the homes each time."""
    took = {"whole": [], "unchanged": []}
    for kind, each in took.items():
        for _ in range(times):
            if kind == "whole":
                data._forget()
            begin = time.perf_counter()
            data.resident(max_age=0)
            each.append(time.perf_counter() - begin)
            time.sleep(0.11)
    return {**took, "entries": len(data), "resident": int(np.count_nonzero(data.resident()))}


def main():
    what, mount, name, *numbers = sys.argv[1:]
    data = copperfs.connect(mount).dataset(name)
    slowest = ready(data)
    filler = Filler(data)
    filler.start()
    try:
        if what == "residency":
            complete_chunk(data, np.ones(len(data), bool), 1)
            filler.stop()
        found = {"passes": passes, "draws": draws, "residency": residency}[what](data, *map(int, numbers))
    finally:
        filler.stop()
    print(json.dumps({"job": True, "slowest_s": slowest, **found}), flush=True)


if __name__ == "__main__":
    main()
