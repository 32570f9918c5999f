//! EROFS images of trees that do not change: the kernel reads names, attributes and pages by itself.
//!
//! An image has two files. The *metadata* holds the superblock, inodes, names and link targets, and is written by
//! [`write()`]. The *data file* holds the contents of all regular files, each from a multiple of 4 KiB on, in the order of
//! a [`Layout`]. The data file is not written: reads of it are divided into the files behind it by
//! [`extents::Extents::pieces`].
//!
//! Pure: takes entries and returns bytes that depend on them alone. The kernel parses the metadata, so everything that
//! comes from an origin or a peer is checked when it is added to a [`Tree`], and becomes data in structures that only
//! this module lays out. `docs/image-format.md` describes the subset of the format that it uses.

pub mod ahead;
mod directory;
pub mod extents;
pub mod files;
mod format;

mod inode;
mod layout;
mod space;
#[cfg(test)]
mod tests;
pub mod transfer;
mod tree;
mod write;

pub use format::{BLOCK_BYTES, LARGE_BYTES_MIN};
pub use inode::Inode;
pub use layout::Layout;
pub use tree::{ImageError, NodeId, Tree};
pub use write::write;
