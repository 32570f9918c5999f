#!/usr/bin/env python3
"""Draws 20 mini-batches of a training loop: reading, transformation, computation (Quiver, Figures 4 and 5).

The loop is CopperDataLoader's, with workers. The transformation is real work on the bytes; a pause takes the
place of the GPU's step. Needs PyTorch. Prints a line of JSON at the end.
"""

import argparse
import json
import time

import copperfs
import numpy as np
import torch
from copperfs import Timeline
from copperfs.torch import CopperDataLoader, CopperDataset

BATCHES, SKIPPED = 20, 5


def transformed(contents):
    """The bytes as an image would be prepared: as floating-point numbers, normalised, and mirrored."""
    pixels = np.frombuffer(contents, np.uint8).astype(np.float32).reshape(-1, 128)
    return np.ascontiguousarray(((pixels - pixels.mean()) / pixels.std())[:, ::-1])


def collated(samples):
    """A mini-batch as a tensor, which workers hand over in shared memory."""
    return torch.from_numpy(np.stack(samples))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mount")
    parser.add_argument("dataset")
    parser.add_argument("plot", help="the file of the drawing")
    parser.add_argument("--rate", type=float, required=True, help="entries/s that it consumes")
    parser.add_argument("--warm", type=int, default=0, help="epochs before those that are drawn")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    data = copperfs.connect(options.mount).dataset(options.dataset)
    per_epoch = -(-len(data) // options.batch)
    timeline = Timeline(BATCHES, skip=options.warm * per_epoch + SKIPPED)
    loader = CopperDataLoader(
        CopperDataset(data, transformed), options.batch, num_workers=options.workers,
        collate_fn=collated, timeline=timeline,
    )  # fmt: skip
    while not timeline.complete:
        for batch in loader:
            time.sleep(len(batch) / options.rate)
            if timeline.complete:
                break
    found = "hits" if options.warm else "misses"
    timeline.save(options.plot, f"{BATCHES} mini-batches on {found}, {options.rate:.0f} entries per second")
    stages = {
        stage: sum(getattr(spans, stage).seconds for spans in timeline.spans) / BATCHES
        for stage in ("io", "transform", "compute")
    }
    print(json.dumps({"job": True, "idle": timeline.idle(), "batches": len(timeline.spans), **stages}), flush=True)


if __name__ == "__main__":
    main()
