"""Fills the chunk that is loading, in the background (Quiver, section 5.2).

Each job fetches the missing entries in a random order of its own, and looks up again after every few. So jobs
share the work without talking to each other, and storage gives each entry about once.
"""

from __future__ import annotations

import random
import threading
import time
import warnings
from typing import Callable

import numpy as np
from numpy.typing import NDArray

from .dataset import CACHED, Dataset
from .errors import CopperWarning
from .guide import LOADING
from .reader import Fetch, Reader

# Entries whose residency is looked up together, and those that a thread fetches in one go.
_WINDOW, _PIECE = 2048, 32
_IDLE_SECONDS = 0.25
# Entries that are still missing after this time are fetched again.
_AGAIN_SECONDS = 10.0
#: Threads by default. They wait for storage, which object stores answer after tens of milliseconds.
READERS = 8


class Filler:
    """Threads that fetch the missing entries of the loading chunk, each entry once in ten seconds at most."""

    def __init__(
        self,
        data: Dataset,
        fetch: Fetch | None = None,
        readers: int = READERS,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if readers < 0:
            raise ValueError(f"{readers} threads that fill a chunk: give 0 for none")
        self._data = data
        self._reader = Reader(data, fetch)
        self._readers = readers
        # By default another order in every process: that divides the work.
        self._random = random.Random(seed)
        # Guards the fields below. A thread that waits for it waits for one look-up.
        self._lock = threading.Lock()
        self._chunk: int | None = None
        self._clock = clock
        self._idle_since = 0.0
        # The entries to fetch: those of the window, which were missing at the last look, and the later ones.
        self._window: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._later = self._window
        # The answer that the last look used.
        self._resident: NDArray[np.bool_] | None = None
        # Asks the threads of this start to end.
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        # The kinds of errors that were told.
        self._told: set[type[Exception]] = set()
        #: Entries fetched, and those that could not be.
        self.fetched = 0
        self.failed = 0

    def start(self) -> None:
        """Starts the threads, unless they run."""
        if not self._threads:
            # Another event: threads that hung in a read when they were stopped still have to end.
            self._stop = threading.Event()
            self._threads = [
                threading.Thread(
                    target=self._run, args=(self._stop,), name=f"copperfs-filler-{number}", daemon=True
                )
                for number in range(self._readers)
            ]
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        """Asks the threads to end, and waits for that, at most a second.

        One that hangs in a read is left behind; it ends with the read, or with the process.
        """
        self._stop.set()
        deadline = time.monotonic() + 1
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []

    def next_piece(self) -> NDArray[np.int64]:
        """Returns the entries to fetch next: some that are missing of the loading chunk, or none."""
        with self._lock:
            if self._data.mode() != CACHED:
                return self._window[:0]
            self._follow()
            resident = self._data.resident()
            while len(self._window) or len(self._later):
                if not len(self._window):
                    self._window, self._later = self._later[:_WINDOW], self._later[_WINDOW:]
                    self._resident = None
                # Most pieces are taken while the last answer still holds.
                if resident is not self._resident:
                    self._window = self._window[~resident[self._window]]
                    self._resident = resident
                # A piece is not fetched again so soon: it may be one that cannot be read or kept.
                piece, self._window = self._window[:_PIECE], self._window[_PIECE:]
                self._idle_since = self._clock()
                if len(piece):
                    return piece
            return self._window

    def _follow(self) -> None:
        """Turns to the chunk that is loading first now, or to the entries of it that are still missing."""
        chunks = self._data.chunks()
        loading = next((chunk.number for chunk in chunks.resident if chunk.state == LOADING), None)
        # A node may have gone, and its entries with it.
        is_done = not len(self._window) and not len(self._later)
        again = is_done and self._clock() - self._idle_since >= _AGAIN_SECONDS
        if loading != self._chunk or again:
            self._chunk = loading
            entries = np.zeros(0, np.int64) if loading is None else chunks.layout.chunk(loading)
            seed = self._random.getrandbits(63)
            self._later = np.random.default_rng(seed).permutation(entries)
            self._window = self._later[:0]

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            piece = self.next_piece()
            if not len(piece):
                stop.wait(_IDLE_SECONDS)
            for entry in piece.tolist():
                if stop.is_set():
                    return
                self._bring(entry)

    def _bring(self, entry: int) -> None:
        try:
            self._reader.bring([entry])
        except Exception as error:
            # The caller's fetch may raise anything. The entry stays a miss, which shows the error again.
            with self._lock:
                self.failed += 1
                is_new = type(error) not in self._told
                self._told.add(type(error))
            if is_new:
                warnings.warn(
                    f"{self._data.path(entry)} cannot be fetched ahead: {error}", CopperWarning, stacklevel=1
                )
            return
        with self._lock:
            self.fetched += 1
