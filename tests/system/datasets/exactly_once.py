"""Takes an epoch of a dataset in three pieces, with other numbers of ranks and workers after each stop.

Ranks are processes, and a checkpoint goes through a file. Arguments: the data mount, the name of the dataset,
and pieces as RANKSxWORKERS. Prints the number of entries that came, of those that did not come once, and of
chunks that were resident meanwhile.
"""

import multiprocessing
import sys
import time
from collections import Counter
from itertools import islice

import torch
from copperfs import connect, merge_states
from copperfs.torch import CopperDataLoader, CopperDataset

BATCH = 5
# The remaining entries divide evenly among four ranks: otherwise the last mini-batches would be padded.
STOPS = [20, 32, None]


def number(contents):
    """The number at the beginning of a file."""
    return int.from_bytes(contents[:8], "little")


def rank_main(mount, name, rank, world, workers, stop, state, results):
    """One rank's piece."""
    data = connect(mount).dataset(name)
    loader = CopperDataLoader(
        CopperDataset(data, number), BATCH, num_workers=workers, rank=rank, world_size=world, fill=2
    )
    if state is not None:
        loader.load_state_dict(state)
    # All ranks together take as many mini-batches as one would.
    stop = stop and stop // world
    numbers, chunks = [], set()
    for batch in islice(loader, stop):
        numbers += map(int, batch)
        chunks.update(chunk.number for chunk in data.chunks().resident)
        # Chunks change about once a second.
        time.sleep(0.01 * world)
    torch.save(loader.state_dict(), f"{results}.{rank}")
    torch.save((numbers, chunks), f"{results}.{rank}.seen")


def main():
    mount, name, results, *pieces = sys.argv[1:]
    entries = len(connect(mount).dataset(name))
    fork = multiprocessing.get_context("fork")
    seen, chunks, states = Counter(), set(), None
    for piece, stop in zip(pieces, STOPS):
        world, workers = map(int, piece.split("x"))
        if states is not None and len(states) != world:
            states = merge_states(states, world)
        ranks = [
            fork.Process(
                target=rank_main,
                args=(mount, name, rank, world, workers, stop, states and states[rank], results),
            )
            for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
            assert rank.exitcode == 0, rank
        states = [torch.load(f"{results}.{rank}") for rank in range(world)]
        for rank in range(world):
            numbers, resident = torch.load(f"{results}.{rank}.seen")
            seen.update(numbers)
            chunks |= resident
    print(sum(seen.values()), sum(seen[entry] != 1 for entry in range(entries)), len(chunks))


if __name__ == "__main__":
    main()
