#!/usr/bin/env python3
"""Trains a small network by CopperDataLoader, and says after each epoch how well it does on other samples.

`digits` is a convolutional network on images, `names` a recurrent one on sequences of different lengths.
Samples are those of accuracy_data.py. Needs PyTorch. Prints a line of JSON for each epoch, and one at the end.
"""

import argparse
import json
import math
import os
import time
from collections import Counter
from pathlib import Path

import copperfs
import torch
from copperfs.torch import CopperDataLoader, CopperDataset
from torch import nn

BATCH = 32
RATE = {"digits": 2e-3, "names": 4e-3}


class Images(nn.Module):
    """8 × 8 pixels to a class."""

    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 16, classes),
        )  # fmt: skip

    def forward(self, batch):
        return self.layers(batch[0])

    @staticmethod
    def collate(contents):
        """A mini-batch of the contents of samples."""
        pixels = torch.stack([torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in contents])
        return pixels.view(-1, 1, 8, 8) / 16, None


class Sequences(nn.Module):
    """Bytes of a name to a class."""

    def __init__(self, classes):
        super().__init__()
        self.embedded = nn.Embedding(256, 24)
        self.layer = nn.GRU(24, 64, batch_first=True)
        self.out = nn.Linear(64, classes)

    def forward(self, batch):
        text, lengths = batch
        found, _ = self.layer(self.embedded(text))
        return self.out(found[torch.arange(len(lengths)), lengths - 1])

    @staticmethod
    def collate(contents):
        """A mini-batch, padded to its longest name."""
        texts = [torch.frombuffer(bytearray(one), dtype=torch.uint8).long() for one in contents]
        return nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor([len(one) for one in texts])


class Job:
    """One run."""

    def __init__(self, options):
        self.options = options
        torch.manual_seed(options.seed)
        torch.set_num_threads(1)
        self.test = [bytes.fromhex(line) for line in Path(options.test).read_text().split()]
        self.model = {"digits": Images, "names": Sequences}[options.kind](1 + max(one[0] for one in self.test))
        data = copperfs.connect(options.mount).dataset(options.dataset)
        self.loader = CopperDataLoader(
            CopperDataset(data), BATCH, collate_fn=self.collate, seed=options.seed,
            bucket=options.bucket, substitute=not options.plain,
        )  # fmt: skip
        self.count = len(data)
        self.stripes = data.chunks().layout.stripes
        self.stripe_of = {
            entry: unit % self.stripes
            for unit in range(10 * self.stripes)
            for entry in range(*data.chunks().layout.unit(unit))
        }
        self.noted = Counter()
        arrived = self.loader._reporter.arrived

        def noted(batch):
            self.noted.update(hits=batch.hits, misses=batch.misses)
            self.noted["chunks"] += len({self.stripe_of[int(entry)] for entry in batch.entries})
            self.noted["batches"] += 1
            arrived(batch)

        self.loader._reporter.arrived = noted
        self.padding = Counter()

    def collate(self, samples):
        """Contents as the network takes them, and classes."""
        return self.model.collate([one[1:] for one in samples]), torch.tensor([one[0] for one in samples])

    def accuracy(self):
        """Percent of the other samples whose class is found."""
        self.model.eval()
        right = 0
        with torch.no_grad():
            for begin in range(0, len(self.test), 256):
                batch, labels = self.collate(self.test[begin : begin + 256])
                right += int((self.model(batch).argmax(1) == labels).sum())
        self.model.train()
        return 100 * right / len(self.test)

    def epoch(self, number, optimizer, schedule):
        """An epoch; what it says of itself."""
        begun, seen, loss = time.time(), 0, math.nan
        self.noted.clear()
        self.padding.clear()
        free = time.monotonic()
        for batch, labels in self.loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(batch), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            seen += len(labels)
            if batch[1] is not None:
                self.padding.update(used=int(batch[1].sum()), given=batch[0].numel())
            if self.options.rate:
                # A clock takes the place of a GPU: a chunk must last until the next one is loaded.
                free = max(free, time.monotonic() - 0.05) + len(labels) / self.options.rate
                time.sleep(max(0.0, free - time.monotonic()))
        return {
            "epoch": number,
            "seconds": time.time() - begun,
            "entries": seen,
            "accuracy": self.accuracy(),
            "loss": float(loss),
            "padding": 1 - self.padding["used"] / self.padding["given"] if self.padding else 0,
            **self.noted,
        }

    def run(self):
        """All epochs."""
        epochs = self.options.epochs
        optimizer = torch.optim.Adam(self.model.parameters(), RATE[self.options.kind])
        steps = epochs * len(self.loader)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1, step / steps)))
        )
        time.sleep(max(0.0, self.options.start - time.time()))
        wrong = 0
        for number in range(epochs):
            said = self.epoch(number, optimizer, schedule)
            wrong += said["entries"] != self.count
            print(json.dumps(said), flush=True)
        print(json.dumps({"job": True, "wrong": wrong, "stripes": self.stripes}), flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mount")
    parser.add_argument("dataset")
    parser.add_argument("kind", choices=["digits", "names"])
    parser.add_argument("test", help="the other samples, a line in hex for each")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bucket", action="store_true", help="mini-batches of similar lengths")
    parser.add_argument("--plain", action="store_true", help="no substitutes: a plain permutation")
    parser.add_argument("--rate", type=float, default=0, help="entries/s at most; 0: all")
    parser.add_argument("--start", type=float, default=0, help="begin at this time (Unix, seconds)")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    Job(arguments()).run()
