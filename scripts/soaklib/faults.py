"""The injected faults, and the errors that they explain. Any other error is a defect."""

import time

from .content import Words

# An outage may affect answers until the request timeout has passed and the load has eased.
AFTERMATH_S = 20.0

# The kinds of fault that make reads fail with EIO.
ROOT_DOWN, FILES_HANG = range(2)


class Faults:
    """When each kind of fault last ended, shared by all processes; infinite while it lasts."""

    def __init__(self):
        self.ended = Words(2, "d")
        for kind in (ROOT_DOWN, FILES_HANG):
            self.ended[kind] = -AFTERMATH_S

    def begin(self, kind):
        """Records that the fault begins."""
        self.ended[kind] = float("inf")

    def end(self, kind):
        """Records that the fault ends. Its aftermath follows."""
        self.ended[kind] = time.monotonic()

    def is_on(self, kind):
        """Whether the fault lasts now."""
        return self.ended[kind] == float("inf")

    def explains(self, kind, began):
        """Whether an operation that began at `began` may have been affected by the fault or its aftermath."""
        return began < self.ended[kind] + AFTERMATH_S
