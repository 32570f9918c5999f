#!/usr/bin/env python3
"""A small training loop as people write them: a DataLoader over a folder of images, and a network.

Knows nothing of copperfs. Needs PyTorch and Pillow (Debian: python3-torch, python3-pil). Prints a line
of JSON for each epoch.

  torch_job.py FOLDER EPOCHS          trains on it
  torch_job.py --make FOLDER COUNT    makes such a folder of JPEG and PNG files
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy
import torch
from PIL import Image

CLASSES = 10
SIDE = 160
BATCH = 16


class Images(torch.utils.data.Dataset):
    """FOLDER/CLASS/IMAGE, as torchvision's ImageFolder reads it."""

    def __init__(self, folder):
        self.paths = sorted(path for path in Path(folder).glob("*/*") if path.is_file())
        names = sorted({path.parent.name for path in self.paths})
        self.labels = {name: label for label, name in enumerate(names)}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, number):
        path = self.paths[number]
        with Image.open(path) as image:
            pixels = numpy.asarray(image.convert("RGB"), dtype=numpy.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1), self.labels[path.parent.name]


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 8 * 8, CLASSES),
    )


def train(folder, epochs):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    images = Images(folder)
    size = sum(path.stat().st_size for path in images.paths)
    loader = torch.utils.data.DataLoader(images, batch_size=BATCH, shuffle=True, num_workers=2)
    model, loss_of = network(), torch.nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    time.sleep(max(0.0, float(os.environ.get("START", 0)) - time.time()))
    for epoch in range(epochs):
        begun, seen, loss = time.time(), 0, None
        for pixels, labels in loader:
            optimiser.zero_grad()
            loss = loss_of(model(pixels), labels)
            loss.backward()
            optimiser.step()
            seen += len(labels)
        ended = time.time()
        print(
            json.dumps(
                {
                    "epoch": epoch,
                    "start": begun,
                    "end": ended,
                    "seconds": ended - begun,
                    "bytes": size,
                    "files": seen,
                    "loss": float(loss),
                }
            ),
            flush=True,
        )
        # What people do between epochs: validation, a checkpoint.
        time.sleep(float(os.environ.get("PAUSE", 0)))
    print(json.dumps({"job": True, "files": len(images), "wrong": 0}), flush=True)


def make(folder, count):
    """Noise, so that nothing compresses: about 50 KB each, every eighth one a PNG."""
    random = numpy.random.default_rng(1)
    for number in range(count):
        pixels = random.integers(0, 256, (SIDE, SIDE, 3), dtype=numpy.uint8)
        path = Path(folder) / f"class{number % CLASSES}" / f"{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 8 == 0:
            Image.fromarray(pixels).save(path.with_suffix(".png"))
        else:
            Image.fromarray(pixels).save(path.with_suffix(".jpg"), quality=95, subsampling=0)


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(sys.argv[2], int(sys.argv[3]))
    else:
        train(sys.argv[1], int(sys.argv[2]))
