//! Finds entries by place and by hash. Made when a manifest is opened: at most 20 bytes for each entry and 8 for
//! each file.

use super::sections::Sections;
use super::{narrow, to_usize};
use std::ops::Range;

/// The maximum number of bits that select a bucket of hashes.
const BUCKET_BITS_MAX: u32 = 26;

/// The order of files and entries by other keys than their numbers.
pub(super) struct Lookup {
    /// The files in the order of their paths.
    pub(super) by_path: Vec<u32>,
    /// The entries of each file in the order of their offsets.
    places: Groups,
    /// The entries in the order of their hashes, in buckets of equal first bits. Hashes are spread evenly, so a
    /// bucket has about one entry. Hashes that someone chose may all be in one bucket, which is searched
    /// by halves.
    hashes: Groups,
    bucket_bits: u32,
}

/// Numbers in groups.
struct Groups {
    /// Where each group begins, and the end of the last one.
    starts: Vec<u32>,
    members: Vec<u32>,
}

impl Groups {
    /// Groups the numbers from 0 by the `keys` at these places, which are below `groups`. Within a group they are
    /// ascending.
    fn of(keys: impl ExactSizeIterator<Item = usize> + Clone, groups: usize) -> Self {
        let mut starts = vec![0_u32; groups + 1];
        for key in keys.clone() {
            starts[key + 1] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut next = starts.clone();
        let mut members = vec![0; keys.len()];
        for (number, key) in keys.enumerate() {
            members[next[key] as usize] = narrow(number);
            next[key] += 1;
        }
        Self { starts, members }
    }

    fn range(&self, group: usize) -> Range<usize> {
        match self.starts.get(group..group + 2) {
            Some(&[start, end]) => start as usize..end as usize,
            _ => 0..0,
        }
    }

    fn get(&self, group: usize) -> &[u32] {
        &self.members[self.range(group)]
    }

    fn sort_each<K: Ord>(&mut self, key: impl Fn(u32) -> K) {
        for group in 0..self.starts.len() - 1 {
            let range = self.range(group);
            self.members[range].sort_unstable_by_key(|member| key(*member));
        }
    }
}

impl Lookup {
    /// Makes it for a manifest that keeps all rules of [`super::check::rules`].
    pub(super) fn new(sections: &Sections, files: u64) -> Self {
        let hashes = sections.hashes();
        let files = to_usize(files);
        let bucket_bits = hashes.len().max(2).ilog2().min(BUCKET_BITS_MAX);
        let mut by_path: Vec<u32> = (0..narrow(files)).collect();
        by_path.sort_unstable_by_key(|file| sections.path(*file as usize));
        let mut places = Groups::of(sections.file_numbers().map(|file| file as usize), files);
        places.sort_each(|entry| sections.extent(entry as usize));
        let buckets = hashes.iter().map(|hash| bucket_of(hash, bucket_bits));
        let mut hashes = Groups::of(buckets, 1 << bucket_bits);
        hashes.sort_each(|entry| (sections.hashes().get(entry as usize), entry));
        Self {
            by_path,
            places,
            hashes,
            bucket_bits,
        }
    }

    /// The entries of `file`, in the order of their offsets.
    pub(super) fn of_file(&self, file: usize) -> &[u32] {
        self.places.get(file)
    }

    /// The entries with `hash`, in dataset order.
    pub(super) fn with_hash(&self, sections: &Sections, hash: &[u8; 32]) -> &[u32] {
        let bucket = self.hashes.get(bucket_of(hash, self.bucket_bits));
        let of = |entry: &u32| sections.hashes().get(*entry as usize);
        let first = bucket.partition_point(|entry| of(entry) < Some(hash));
        let found = &bucket[first..];
        let count = found.partition_point(|entry| of(entry) == Some(hash));
        &found[..count]
    }
}

/// The first `bits` of `hash`, at least one.
fn bucket_of(hash: &[u8; 32], bits: u32) -> usize {
    let first = hash.first_chunk().copied().map_or(0, u64::from_be_bytes);
    to_usize(first >> (u64::BITS - bits))
}
