"""copperfs: training loops that take the entries that a cache holds.

`connect` gives a mount, `Mount.dataset` a dataset of it, and `batches` (or `copperfs.torch.CopperDataLoader`)
its mini-batches. docs/PYTHON.md has recipes.
"""

from .batch_reads import read_many
from .client import Mount, connect
from .dataset import Chunk, Chunks, Dataset
from .errors import (
    ContentError,
    CopperError,
    CopperWarning,
    DaemonError,
    ExactlyOnceError,
    ManifestError,
    StateError,
    UnavailableError,
)
from .filler import Filler
from .layout import Layout
from .loop import Batches, batches
from .manifest import Entry, Manifest
from .sampler import SubstitutableSampler
from .sampling import BucketPlan, Plan
from .state import merge_states, sampler_state
from .timeline import Timeline

__all__ = [
    "Batches",
    "BucketPlan",
    "Chunk",
    "Chunks",
    "ContentError",
    "CopperError",
    "CopperWarning",
    "DaemonError",
    "Dataset",
    "Entry",
    "ExactlyOnceError",
    "Filler",
    "Layout",
    "Manifest",
    "ManifestError",
    "Mount",
    "Plan",
    "StateError",
    "SubstitutableSampler",
    "Timeline",
    "UnavailableError",
    "batches",
    "connect",
    "merge_states",
    "read_many",
    "sampler_state",
]
__version__ = "0.1.0"
