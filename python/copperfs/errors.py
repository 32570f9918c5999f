"""The errors of this package. Each names the failure, its reason, and a remedy."""

from __future__ import annotations


class CopperError(Exception):
    """The base of all errors of this package.

    `advice` is a remedy; it is part of the message, too.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message = message
        self.advice = advice

    def __reduce__(self) -> tuple[type[CopperError], tuple[str, str]]:
        # The default would pass the joined text as the message when a worker process sends it home.
        return type(self), (self.message, self.advice)


class UnavailableError(CopperError):
    """The daemon cannot be reached, does not answer in time, or its answer is not HTTP."""


class DaemonError(CopperError):
    """The daemon refused a request. `status` is the HTTP status."""

    def __init__(self, status: int, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.status = status

    def __reduce__(self) -> tuple[type[CopperError], tuple[int, str, str]]:  # type: ignore[override]
        return type(self), (self.status, self.message, self.advice)


class ContentError(CopperError):
    """Bytes that were fetched are not those of the entry: they have another hash."""


class ManifestError(CopperError):
    """A file is not a manifest, or is one that is damaged or cut short."""


class StateError(CopperError):
    """A checkpoint or a record does not fit the run that it is given to."""


class ExactlyOnceError(CopperError):
    """An entry was about to be used a second time in an epoch, or not at all: a defect of this package."""


class CopperWarning(UserWarning):
    """Something is missing, and the run goes on without it."""
