//! Measures the writer of images: a software tree of many names, sorted, laid out and written as the attendant does it.

use super::Quantiles;
use crate::image::{ImageError, Inode, Layout, NodeId, Tree, write};
use crate::num::as_f64;
use anyhow::Context;
use bytes::Bytes;
use copperfs_overlay::{FileKind, Timestamp};
use serde::Serialize;
use std::time::Instant;

/// Files of a directory, as in software trees.
const FILES: usize = 12;

/// The result.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ImageResult {
    /// The number of names.
    pub entries: usize,
    /// The number of images that were written, one after the other.
    pub samples: usize,
    /// The median time to sort, lay out and write one, in seconds.
    pub time_s: f64,
    /// Bytes of metadata for each name.
    pub bytes_per_entry: f64,
}

/// Writes `samples` images of `entries` names.
///
/// # Errors
/// No image can have so many.
pub fn run(entries: usize, samples: usize) -> anyhow::Result<ImageResult> {
    let mut times = Vec::with_capacity(samples);
    let mut found = None;
    for _ in 0..samples {
        let tree = software(entries).context("no image can have so many names")?;
        let begun = Instant::now();
        let tree = tree.sorted()?;
        let layout = Layout::new(&tree, &[])?;
        let image = write(&tree, &layout)?;
        times.push(begun.elapsed());
        found = Some((tree.count(), image.len()));
    }
    let (entries, bytes) = found.context("no sample was taken")?;
    Ok(ImageResult {
        entries,
        samples,
        time_s: Quantiles::of(times).p50_s,
        bytes_per_entry: as_f64(bytes as u64) / as_f64(entries as u64),
    })
}

/// A tree of `entries` names, its root included.
fn software(entries: usize) -> Result<Tree, ImageError> {
    let mut tree = Tree::new(inode(FileKind::Directory, 0))?;
    let mut directory = NodeId::ROOT;
    for number in 0..entries.saturating_sub(1) {
        let file = number % (FILES + 1);
        if file == 0 {
            let name = format!("directory{number:07}").into();
            directory = tree.add(NodeId::ROOT, name, inode(FileKind::Directory, 0))?;
        } else {
            let name = Bytes::from(format!("__file{file:05}.py"));
            tree.add(directory, name, inode(FileKind::File, 1000))?;
        }
    }
    Ok(tree)
}

fn inode(kind: FileKind, size: u64) -> Inode {
    Inode {
        kind,
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        links: 1,
        device: 0,
        size,
        mtime: Timestamp {
            seconds: 1_700_000_000,
            nanoseconds: 1,
        },
        link_target: None,
        xattrs: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_as_many_names_as_asked_for() {
        let found = run(1000, 3).unwrap();
        assert_eq!((found.entries, found.samples), (1000, 3));
        assert!(found.bytes_per_entry > 32.0, "{found:?}");
    }
}
