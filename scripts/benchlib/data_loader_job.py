#!/usr/bin/env python3
"""PyTorch's DataLoader with eight workers over JPEG images: as files, and in shards.

Reads an epoch for each line of its standard input, and prints a line of JSON for it: samples, bytes (0 if images
are decoded), wall seconds of the epoch and until its first mini-batch, and CPU seconds of the main process and of
the workers. The workers stay from one epoch to the next. Needs PyTorch, torchvision, numpy, webdataset and
mosaicml-streaming.

  data_loader_job.py FORMAT DIRECTORY NAME HOW    a dataset below a directory; HOW is bytes or decoded
  data_loader_job.py --make DIRECTORY NAME COUNT  makes the images, and a copy of them in each kind of shards
"""

import io
import json
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

CLASSES = 16
WIDTH, HEIGHT = 500, 375
SIDE = 224
BATCH, WORKERS = 64, 8
SHARDS = 16


def prepared(image):
    """An image as the input of a network."""
    return torch.from_numpy(np.array(image.resize((SIDE, SIDE))))


def decoded(contents):
    """The same, of a file's bytes."""
    return prepared(Image.open(io.BytesIO(contents)).convert("RGB"))


def bytes_of_file(path):
    """The length of a file, all of which is read."""
    with open(path, "rb") as file:
        return len(file.read())


def loader_of(images, **options):
    """A DataLoader whose workers stay."""
    return DataLoader(images, BATCH, num_workers=WORKERS, persistent_workers=True, **options)


def folder(directory, name, how):
    """Files by their paths, as torchvision reads them."""
    from torchvision.datasets import ImageFolder

    only_bytes = {"loader": bytes_of_file}
    images = ImageFolder(directory / name, **(only_bytes if how == "bytes" else {"transform": prepared}))
    return loader_of(images, shuffle=True)


def copper(directory, name, how):
    """The same files. DataLoader gets each mini-batch from `__getitems__`, which reads its files in one call."""
    import copperfs
    from copperfs.torch import CopperDataset

    def label(path):
        return int(path.split("/")[0])

    data = copperfs.connect(directory).dataset(name)
    images = CopperDataset(data, len if how == "bytes" else decoded, target=label)
    return loader_of(images, shuffle=True)


def tar(directory, name, how):
    """WebDataset's shards, which workers divide among themselves."""
    import webdataset

    def sample(found):
        return (len if how == "bytes" else decoded)(found["jpg"]), int(found["cls"])

    shards = sorted(map(str, (directory / name).glob("*.tar")))
    images = webdataset.WebDataset(shards, shardshuffle=SHARDS).map(sample)
    return loader_of(images)


def mds(directory, name, how):
    """MosaicML's shards, where they lie."""
    from streaming import StreamingDataset

    class Images(StreamingDataset):
        def __getitem__(self, number):
            found = super().__getitem__(number)
            return (len if how == "bytes" else decoded)(found["jpg"]), found["cls"]

    images = Images(local=str(directory / name), shuffle=True, batch_size=BATCH)
    return loader_of(images)


FORMATS = {"folder": folder, "copper": copper, "tar": tar, "mds": mds}


def cpu_of_workers():
    """CPU seconds of the processes that this one has forked, by the kernel's clock of another process."""
    clocks = [(~child.pid << 3) | 2 for child in multiprocessing.active_children()]
    return sum(map(time.clock_gettime, clocks))


def epoch(loader):
    """Reads all images once."""
    samples = total = first = 0
    workers, main, begun = cpu_of_workers(), time.process_time(), time.monotonic()
    for images, labels in loader:
        first = first or time.monotonic() - begun
        samples += len(labels)
        total += int(images.sum()) if images.dim() == 1 else 0
    wall = time.monotonic() - begun
    main, workers = time.process_time() - main, cpu_of_workers() - workers
    times = {"wall": wall, "first": first, "main": main, "workers": workers}
    return {"samples": samples, "bytes": total} | times


def serve(loader):
    """Reads an epoch for each line of the standard input."""
    for _ in sys.stdin:
        print(json.dumps(epoch(loader)), flush=True)


def pictures(count):
    """Images with large and small structures, as photographs have: about 110 KB each, all different."""
    random = np.random.default_rng(1)
    grains = [random.normal(0, 20, (HEIGHT, WIDTH, 3)) for _ in range(16)]
    for number in range(count):
        coarse = random.integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.BICUBIC))
        pixels = (smooth + grains[number % len(grains)]).clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        yield number, number % CLASSES, file.getvalue()


def make(directory, name, count):
    """Writes the images as files and into shards."""
    from streaming import MDSWriter
    from webdataset import TarWriter

    per_shard = -(-count // SHARDS)
    shards = directory / f"{name}-tar"
    shards.mkdir(parents=True)
    writers = [TarWriter(str(shards / f"{shard:03}.tar")) for shard in range(SHARDS)]
    columns = {"jpg": "bytes", "cls": "int"}
    with MDSWriter(out=str(directory / f"{name}-mds"), columns=columns, size_limit=per_shard * 110_000) as writer:
        for number, label, contents in pictures(count):
            path = directory / name / f"{label:02}" / f"{number:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
            sample = {"__key__": f"{number:06}", "jpg": contents, "cls": label}
            writers[number // per_shard].write(sample)
            writer.write({"jpg": contents, "cls": label})
    for one in writers:
        one.close()


def main():
    """Makes the images, or reads them."""
    if sys.argv[1] == "--make":
        make(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    kind, directory, name, how = sys.argv[1:]
    torch.set_num_threads(1)
    serve(FORMATS[kind](Path(directory), name, how))


if __name__ == "__main__":
    main()
