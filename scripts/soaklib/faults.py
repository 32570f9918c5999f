"""The faults that were made, and which errors they explain. An error that none explains is a defect."""

import time

from .content import Words

# An outage may show in answers until the request time-out has passed and the load has eased.
AFTERMATH_S = 20.0

# The kinds of fault that make reads fail with EIO.
ROOT_DOWN, FILES_HANG = range(2)


class Faults:
    """When each kind of fault began last and when it ended, shared by all processes."""

    def __init__(self):
        self.ended = Words(2, "d")
        for kind in (ROOT_DOWN, FILES_HANG):
            self.ended[kind] = -AFTERMATH_S

    def begin(self, kind):
        """The fault is there from now on, until it is ended."""
        self.ended[kind] = float("inf")

    def end(self, kind):
        """The fault is over, but for its aftermath."""
        self.ended[kind] = time.monotonic()

    def is_on(self, kind):
        """Whether the fault is there now."""
        return self.ended[kind] == float("inf")

    def explains(self, kind, began):
        """Whether an operation that began at `began` may have met the fault or its aftermath."""
        return began < self.ended[kind] + AFTERMATH_S
