//! Chunks: the parts of a dataset that jobs read one after the other, at most two of them cached.
//!
//! A training job needs each entry of its dataset once an epoch, in any random order. So many jobs can
//! share a small part of a dataset, if all of them move on to the next part together (Quiver,
//! section 5.1). A [`ChunkLayout`] says which entries form a chunk, and a [`Rotation`] which chunks are
//! resident. Neither knows nodes, bytes or connections: homes admit and evict by membership, and
//! clients fetch missing entries.
//!
//! Pure: time is an argument. The live allocator and the simulator use the same code.

mod layout;
mod readers;
mod reading;
mod resident;
mod rotation;
mod runs;

pub use layout::{CHUNK_BYTES, ChunkLayout, LayoutError, PARTITIONS, STRIPES_MAX, STRIPES_MIN};
pub use reading::{Reader, Reading, Referred, Released};
pub use resident::{ChunkReport, ChunkState, ResidentChunk};
pub use rotation::{Change, EVICT_AFTER, READERS_MAX, RESIDENT_MAX, Rotation, TooManyReaders};
