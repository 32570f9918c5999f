#!/usr/bin/env python3
"""Row 64: reports over a warehouse, each a graph of its own, on Dask workers of several hosts.

    pipeline_dask.py PLAN ROOT ADDRESS WORKERS

Starts the scheduler, waits for the workers, submits all reports at once in their order, and prints the
time that they took as a line of JSON.
"""

import io
import json
import sys
import time

import dask
import pandas
from distributed import Client, LocalCluster


def load(path):
    """The sum of each column by key. The file is read in one go, as from an object store."""
    with open(path, "rb") as file:
        table = pandas.read_parquet(io.BytesIO(file.read()))
    return table.groupby("key").sum()


def combine(parts):
    """The parts of a report, together."""
    return float(pandas.concat(parts).groupby(level=0).sum().to_numpy().sum())


def main():
    plan, root, address, workers = sys.argv[1:5]
    with open(plan) as file:
        reports = json.load(file)["reports"]
    host, port = address.rsplit(":", 1)
    cluster = LocalCluster(n_workers=0, host=host, scheduler_port=int(port), dashboard_address=None)
    with cluster, Client(cluster) as client:
        client.wait_for_workers(int(workers), timeout=120)
        client.run(pandas.DataFrame)  # so that no import is measured
        begin = time.time()
        futures = []
        for place, report in enumerate(reports):
            parts = [dask.delayed(load)(f"{root}/{name}") for name in report["files"]]
            futures.append(client.compute(dask.delayed(combine)(parts), priority=-place))
        results = client.gather(futures)
        print(json.dumps({"seconds": time.time() - begin, "begin": begin, "results": results}), flush=True)


if __name__ == "__main__":
    main()
