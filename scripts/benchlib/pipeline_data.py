#!/usr/bin/env python3
"""Makes the warehouse of rows 62 to 65: Parquet files whose columns do not compress.

    pipeline_data.py DIRECTORY FILE_BYTES NAME=FILES…

Each NAME is a directory of so many files. All files have the same schema: a key and three numbers.
"""

import sys
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet as parquet

ROW_BYTES = 32
KEYS = 1000


def main():
    directory, size = Path(sys.argv[1]), int(sys.argv[2])
    rows = size // ROW_BYTES
    random = numpy.random.default_rng(14)
    for part in sys.argv[3:]:
        name, files = part.split("=")[0:-1], int(part.split("=")[-1])
        below = directory / "=".join(name)
        below.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            columns = {"key": random.integers(0, KEYS, rows)}
            columns |= {name: random.random(rows) for name in ("a", "b", "c")}
            # Random keys take ten bits each in a dictionary, so without one the size is as asked for.
            parquet.write_table(
                pyarrow.table(columns),
                below / f"part-{number:03}.parquet",
                compression="none",
                use_dictionary=False,
            )


if __name__ == "__main__":
    main()
