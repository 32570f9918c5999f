"""A program of a reader of the pages: reads all files of a dataset, in a random order, for two epochs."""

import argparse
import pathlib
import random

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path, default="/copper_data/data/images")
files = [path for path in parser.parse_args().data.rglob("*") if path.is_file()]
for epoch in range(2):
    random.shuffle(files)
    print(f"epoch {epoch}: {sum(len(path.read_bytes()) for path in files)} bytes of {len(files)} files")
