"""Makes the files that the pages name: `data.py LUSTRE BUCKET`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

# As docs/TRAINING.md describes it: 32 x 32 pixels in three colours, below the name of the class.
IMAGE_BYTES, CLASSES = 3 * 32 * 32, 10


def images(root: Path, count: int) -> None:
    """Writes so many images below `root`."""
    generator = random.Random(count)
    for number in range(count):
        path = root / str(number % CLASSES) / f"{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(generator.randbytes(IMAGE_BYTES))


def main(lustre: Path, bucket: Path) -> None:
    """Makes all files."""
    images(bucket / "train/images", 200)
    images(bucket / "train/imagenet", 100)
    (bucket / "prefix").mkdir()
    (bucket / "prefix/hello.txt").write_text("hello from the bucket\n", encoding="utf-8")
    for day in range(20, 26):
        table = lustre / f"warehouse/day=2026-11-{day}/part-0.parquet"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_bytes(random.Random(day).randbytes(100_000))
    own = lustre / "me/dataset"
    own.mkdir(parents=True, exist_ok=True)
    (own / "table.csv").write_text("a,b\n1,2\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
