"""A small warehouse: facts partitioned by day, dimensions, and files of other formats."""

import datetime
import json
import random

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet

DAYS = [str(datetime.date(2024, 1, 1) + datetime.timedelta(days=i)) for i in range(8)]
ROWS = 3_000


def fact(chance, day, file):
    first = (DAYS.index(day) * 2 + file) * ROWS
    return pa.table(
        {
            "id": list(range(first, first + ROWS)),
            "item": [chance.randrange(200) for _ in range(ROWS)],
            "store": [chance.randrange(20) for _ in range(ROWS)],
            "amount": [chance.random() for _ in range(ROWS)],
        }
    )


def write(root):
    chance = random.Random(1)
    for table, files in ("sales", 2), ("returns", 1):
        for day in DAYS:
            directory = root / table / f"day={day}"
            directory.mkdir(parents=True)
            for file in range(files):
                pa.parquet.write_table(
                    fact(chance, day, file), directory / f"part-{file}.parquet", row_group_size=1_000
                )
    items = pa.table(
        {"item": list(range(200)), "name": [f"name {i}" for i in range(200)], "kind": [i % 10 for i in range(200)]}
    )
    pa.parquet.write_table(items, root / "items.parquet")
    calendar = pa.table({"day": [datetime.date.fromisoformat(d) for d in DAYS], "week": [i // 4 for i in range(8)]})
    pa.parquet.write_table(calendar, root / "calendar.parquet")
    (root / "orc").mkdir()
    pa.orc.write_table(items, root / "orc" / "items.orc")
    for kind in "text", "csv", "json", "odd names":
        (root / kind).mkdir()
    for file in range(3):
        rows = [(i, chance.random()) for i in range(2_000)]
        (root / "text" / f"{file}.txt").write_text("".join(f"{i} word{i % 7}\n" for i, _ in rows))
        (root / "csv" / f"{file}.csv").write_text("".join(f"{i},{x}\n" for i, x in rows))
        (root / "json" / f"{file}.json").write_text("".join(json.dumps({"i": i, "x": x}) + "\n" for i, x in rows))
        (root / "odd names" / f'{file} 100% "ü" #.txt').write_text("one\ntwo\n")
