//! Leases, which limit the use of metadata, and digests of listings, which tell whether they have changed.

use super::item::{Attributes, Cursor, Entry, Listing, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// An answer with the rest of its lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leased<T> {
    /// The answer.
    pub value: T,
    /// How long the answer may be used from now on; `None`: until it is cleared.
    pub lease: Option<Duration>,
}

impl<T> Leased<T> {
    /// An answer that is valid until it is cleared.
    pub const fn lasting(value: T) -> Self {
        Self { value, lease: None }
    }

    /// Changes the answer and keeps the lease.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Leased<U> {
        Leased {
            value: change(self.value),
            lease: self.lease,
        }
    }
}

/// Returns the shorter of two leases.
#[must_use]
pub fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

/// Encodes a lease for the wire, in milliseconds. Rounds down, so that no edge makes it longer.
pub(crate) fn to_ms(lease: Option<Duration>) -> Option<u32> {
    lease.map(|lease| u32::try_from(lease.as_millis()).unwrap_or(u32::MAX))
}

/// Decodes the output of [`to_ms`].
pub(crate) fn from_ms(lease: Option<u32>) -> Option<Duration> {
    lease.map(|ms| Duration::from_millis(ms.into()))
}

/// Identifies the content of a directory or of one page of it: the first half of the BLAKE3 hash of the postcard forms of
/// the directory's attributes, of each entry in order, and of the next cursor. Times of last access count as zero,
/// because listing a directory changes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListingDigest(pub [u8; 16]);

impl fmt::Debug for ListingDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.0[..6].iter();
        bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl ListingDigest {
    /// Returns the digest of one page; see [`ListingDigest::of`].
    #[must_use]
    pub fn of_page(page: &Listing) -> Option<Self> {
        Self::of(&page.directory, &page.entries, page.next.as_ref())
    }

    /// Returns the digest of a listing in parts; `None` if it cannot be encoded, which then counts as changed. Listings
    /// from other nodes can always be encoded.
    #[must_use]
    pub fn of(directory: &Attributes, entries: &[Entry], next: Option<&Cursor>) -> Option<Self> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = Vec::with_capacity(256);
        add(&mut hasher, &mut buffer, &timeless(directory))?;
        for entry in entries {
            let attributes = entry.attributes.as_ref().map(timeless);
            let entry = (&entry.name, entry.kind, attributes);
            add(&mut hasher, &mut buffer, &entry)?;
        }
        add(&mut hasher, &mut buffer, &next)?;
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Some(Self(digest))
    }
}

fn timeless(attributes: &Attributes) -> Attributes {
    Attributes {
        atime: Timestamp {
            seconds: 0,
            nanoseconds: 0,
        },
        ..attributes.clone()
    }
}

fn add<T: Serialize>(hasher: &mut blake3::Hasher, buffer: &mut Vec<u8>, value: &T) -> Option<()> {
    buffer.clear();
    *buffer = postcard::to_extend(value, std::mem::take(buffer)).ok()?;
    hasher.update(buffer);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FileKind, Version};
    use bytes::Bytes;

    fn attributes(atime: i64, version: u8) -> Attributes {
        let time = |seconds| Timestamp {
            seconds,
            nanoseconds: 0,
        };
        Attributes {
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            device: 0,
            size: 5,
            blocks: 8,
            block_size: 4096,
            atime: time(atime),
            mtime: time(7),
            ctime: time(7),
            version: Version::from_data([version; 16]),
            link_target: None,
            content: None,
        }
    }

    fn entry(name: &'static str, version: u8) -> Entry {
        Entry {
            name: Bytes::from_static(name.as_bytes()),
            kind: FileKind::File,
            attributes: Some(attributes(1, version)),
        }
    }

    #[test]
    fn a_digest_changes_with_all_but_access_times() {
        let directory = attributes(1, 0);
        let entries = [entry("a", 1), entry("b", 1)];
        let digest = ListingDigest::of(&directory, &entries, None);
        assert!(digest.is_some());
        let looked_at = ListingDigest::of(&attributes(9, 0), &entries, None);
        assert_eq!(digest, looked_at);
        let next = Cursor(Bytes::from_static(b"x"));
        for other in [
            ListingDigest::of(&attributes(1, 1), &entries, None),
            ListingDigest::of(&directory, &entries[..1], None),
            ListingDigest::of(&directory, &[entry("a", 1), entry("b", 2)], None),
            ListingDigest::of(&directory, &[entry("a", 1), entry("c", 1)], None),
            ListingDigest::of(&directory, &entries, Some(&next)),
        ] {
            assert_ne!(digest, other);
        }
    }

    #[test]
    fn a_lease_never_grows_on_the_wire() {
        let lease = Some(Duration::from_micros(1999));
        assert_eq!(from_ms(to_ms(lease)), Some(Duration::from_millis(1)));
        assert_eq!(from_ms(to_ms(None)), None);
        let long = Some(Duration::MAX);
        assert!(from_ms(to_ms(long)) < long);
        assert_eq!(shorter(lease, None), lease);
        assert_eq!(shorter(lease, long), lease);
        assert_eq!(shorter(None, None), None);
    }
}
