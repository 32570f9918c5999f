//! Walkers that list one directory after the other (find, a recursive copy, an indexer), and the
//! listings to fetch ahead of them.
//!
//! Such a walker waits a round trip at every directory. When it has listed two directories of one
//! parent in the order of its listing, the next ones are listed ahead, a window that grows with the run.
//! Their entries bring their attributes along where the origin's listings do.

use super::ReadPath;
use super::walk::{Stride, Walk};
use copperfs_overlay::{FileKind, ItemPath};
use futures_util::StreamExt;
use futures_util::stream;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Of those who list directories.
const DIRECTORIES: Stride = Stride {
    run_min: 2,
    growth: 2,
    window_max: 64,
};
/// Listings under way that nobody has asked for; those beyond are left to the walker.
const UNDER_WAY_MAX: usize = 64;
/// Listings of one window that are under way.
const AT_ONCE: usize = 32;

/// Those who go through the directories of one directory.
#[derive(Debug, Default)]
pub(super) struct Descent {
    /// Positions of the directories, in the listing's order.
    directories: OnceLock<Box<[u32]>>,
    walk: Walk,
}

impl ReadPath {
    /// Somebody lists `path` from its beginning: lists ahead what he will want next.
    pub fn listing(&self, path: &ItemPath) {
        if !self.0.options.bundles {
            return;
        }
        let Some((parent, name)) = path.split() else {
            return;
        };
        let Some(directory) = self.peek_directory(&parent) else {
            return;
        };
        let Some(position) = directory.position(name) else {
            return;
        };
        let descent = &directory.descent;
        let narrow = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let directories = descent.directories.get_or_init(|| {
            let entries = directory.entries.iter().enumerate();
            entries
                .filter(|(_, entry)| entry.kind == FileKind::Directory)
                .map(|(at, _)| narrow(at))
                .collect()
        });
        let Ok(place) = directories.binary_search(&narrow(position)) else {
            return;
        };
        let Some(ahead) = descent.walk.step(narrow(place), &DIRECTORIES, |_| false) else {
            return;
        };
        let ahead = ahead.start as usize..(ahead.end as usize).min(directories.len());
        let wanted: Vec<ItemPath> = directories
            .get(ahead)
            .unwrap_or_default()
            .iter()
            .filter_map(|&at| parent.join(&directory.entries[at as usize].name).ok())
            .filter(|path| self.peek_directory(path).is_none())
            .collect();
        if !wanted.is_empty() {
            self.list_ahead(wanted);
        }
    }

    fn list_ahead(&self, wanted: Vec<ItemPath>) {
        let count = wanted.len();
        let under_way = &self.0.listings_ahead;
        if under_way.fetch_add(count, Ordering::Relaxed) + count > UNDER_WAY_MAX {
            under_way.fetch_sub(count, Ordering::Relaxed);
            return;
        }
        let this = self.clone();
        let listing = async move {
            let all = stream::iter(wanted).for_each_concurrent(AT_ONCE, |path| {
                let this = this.clone();
                async move {
                    // Why it fails, whoever asks for it is told.
                    if let Err(failure) = this.page(&path, 0, None).await {
                        tracing::debug!(%path, %failure, "not listed ahead");
                    }
                }
            });
            all.await;
            this.0.listings_ahead.fetch_sub(count, Ordering::Relaxed);
        };
        drop(self.0.runtime.spawn(listing));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(places: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let descent = Descent::default();
        let steps = places
            .into_iter()
            .filter_map(|at| descent.walk.step(at, &DIRECTORIES, |_| false));
        steps.flatten().collect()
    }

    #[test]
    fn one_who_goes_in_order_has_each_listed_once_and_ahead() {
        let listed = ahead(0..200);
        assert_eq!(listed[0], 2, "known by the second");
        assert!(listed.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        assert!((200..=199 + 1 + DIRECTORIES.window_max).contains(&(listed[listed.len() - 1] + 1)));
    }

    #[test]
    fn one_who_picks_directories_has_none_listed_ahead() {
        assert_eq!(ahead([3, 9, 1, 7, 7, 5, 2, 0, 4]), [] as [u32; 0]);
    }

    #[test]
    fn one_who_begins_in_the_middle_is_seen_as_well() {
        assert_eq!(ahead([40, 41])[0], 42);
    }
}
