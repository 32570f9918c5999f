"""A program of a reader of the pages: reads all files of a dataset, in a random order, for three epochs."""

import argparse
import pathlib
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path, default="/copper_data/data/images")
files = [path for path in parser.parse_args().data.rglob("*") if path.is_file()]
for epoch in range(3):
    random.shuffle(files)
    size = 0
    for path in files:
        size += len(path.read_bytes())
        time.sleep(0.01)  # a step of the training
    print(f"epoch {epoch}: {size} bytes of {len(files)} files")
