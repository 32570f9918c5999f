//! Pages: long answers as several bounded, compressed frames.
//!
//! A page is a sequence of postcard items. On the wire: one byte for the encoding (0: stored, 1: lz4 block), the
//! uncompressed length as `u32` little-endian, and the payload. No item is split over two pages.

use super::{ANSWER_BYTES_MAX, WireError, at_most};
use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A page is sent once it holds this many bytes.
const PAGE_TARGET_BYTES: usize = 128 << 10;
/// Most uncompressed bytes of a page: the target and one more item (an extended attribute may have 64 KiB).
pub const PAGE_RAW_BYTES_MAX: usize = 256 << 10;
/// Most bytes of a page frame's body. Pages that lz4 does not shrink are stored.
pub const PAGE_BODY_BYTES_MAX: u32 = (256 << 10) + 5;
/// Shorter pages are stored.
const COMPRESS_BYTES_MIN: usize = 512;

const STORED: u8 = 0;
const LZ4: u8 = 1;

/// Packs items into pages.
#[derive(Debug, Default)]
pub struct PageWriter {
    raw: Vec<u8>,
    total: usize,
}

impl PageWriter {
    /// Adds `item`. Returns a page body when one is full.
    ///
    /// # Errors
    /// An item too large for a page, or an answer above [`ANSWER_BYTES_MAX`].
    pub fn push<T: Serialize>(&mut self, item: &T) -> Result<Option<Bytes>, WireError> {
        let before = self.raw.len();
        self.raw = postcard::to_extend(item, std::mem::take(&mut self.raw)).map_err(|error| {
            tracing::warn!(%error, "cannot encode an item");
            WireError::Malformed { what: "item" }
        })?;
        self.total += self.raw.len() - before;
        at_most("bytes of a page", self.raw.len(), PAGE_RAW_BYTES_MAX)?;
        at_most("bytes of an answer", self.total, ANSWER_BYTES_MAX)?;
        Ok((self.raw.len() >= PAGE_TARGET_BYTES).then(|| self.take()))
    }

    /// Returns the last page, if any item is left.
    pub fn finish(&mut self) -> Option<Bytes> {
        (!self.raw.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> Bytes {
        let body = encode_page(&self.raw);
        self.raw.clear();
        body
    }
}

fn encode_page(raw: &[u8]) -> Bytes {
    let packed = (raw.len() >= COMPRESS_BYTES_MIN).then(|| lz4_flex::block::compress(raw));
    let (encoding, payload) = match &packed {
        Some(packed) if packed.len() < raw.len() => (LZ4, packed.as_slice()),
        _ => (STORED, raw),
    };
    let mut body = BytesMut::with_capacity(5 + payload.len());
    body.put_u8(encoding);
    // `push` has refused lengths that do not fit.
    body.put_u32_le(u32::try_from(raw.len()).unwrap_or(u32::MAX));
    body.put_slice(payload);
    body.freeze()
}

/// Collects the items of an answer from its pages.
#[derive(Debug)]
pub struct PageReader<T> {
    items: Vec<T>,
    /// Number of items that were returned before.
    taken: usize,
    expected: usize,
    total: usize,
}

impl<T: DeserializeOwned> PageReader<T> {
    /// A reader of `expected` items. Memory for them is allocated as they arrive.
    #[must_use]
    pub fn new(expected: usize) -> Self {
        Self {
            items: Vec::with_capacity(expected.min(1024)),
            taken: 0,
            expected,
            total: 0,
        }
    }

    /// Whether all items have arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.taken + self.items.len() == self.expected
    }

    /// Returns the items that have arrived since the last call.
    pub fn take(&mut self) -> Vec<T> {
        self.taken += self.items.len();
        std::mem::take(&mut self.items)
    }

    /// Decodes one page body.
    ///
    /// # Errors
    /// A malformed or empty body, more items than announced, or an answer above [`ANSWER_BYTES_MAX`].
    pub fn add(&mut self, body: &[u8]) -> Result<(), WireError> {
        let unpacked;
        let mut raw = match split_page(body)? {
            (STORED, len, payload) if payload.len() == len => payload,
            (LZ4, len, payload) => {
                // `split_page` has bounded `len`.
                let mut bytes = vec![0; len];
                let unpacked_bytes = lz4_flex::block::decompress_into(payload, &mut bytes);
                if unpacked_bytes.ok() != Some(len) {
                    return Err(WireError::Malformed { what: "page" });
                }
                unpacked = bytes;
                &unpacked
            }
            _ => return Err(WireError::Malformed { what: "page" }),
        };
        self.total += raw.len();
        at_most("bytes of an answer", self.total, ANSWER_BYTES_MAX)?;
        if raw.is_empty() {
            return Err(WireError::Malformed { what: "page" });
        }
        while !raw.is_empty() {
            let count = self.taken + self.items.len() + 1;
            at_most("items of an answer", count, self.expected)?;
            let (item, rest) = postcard::take_from_bytes(raw)
                .map_err(|_undecodable| WireError::Malformed { what: "item" })?;
            // Items of no bytes would never end.
            if rest.len() == raw.len() {
                return Err(WireError::Malformed { what: "item" });
            }
            self.items.push(item);
            raw = rest;
        }
        Ok(())
    }
}

fn split_page(body: &[u8]) -> Result<(u8, usize, &[u8]), WireError> {
    let [encoding, a, b, c, d, payload @ ..] = body else {
        return Err(WireError::Malformed { what: "page" });
    };
    let len = u32::from_le_bytes([*a, *b, *c, *d]);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    at_most("bytes of a page", len, PAGE_RAW_BYTES_MAX)?;
    Ok((*encoding, len, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pack<T: Serialize>(items: &[T]) -> Vec<Bytes> {
        let mut writer = PageWriter::default();
        let mut pages: Vec<Bytes> = items
            .iter()
            .filter_map(|item| writer.push(item).unwrap())
            .collect();
        pages.extend(writer.finish());
        pages
    }

    #[test]
    fn many_items_become_several_bounded_pages() {
        let items: Vec<(u64, String)> = (0..50_000).map(|i| (i, format!("name-{i:08}"))).collect();
        let pages = pack(&items);
        assert!(pages.len() > 3);
        let mut reader = PageReader::<(u64, String)>::new(items.len());
        for page in &pages {
            assert!(page.len() <= usize::try_from(PAGE_BODY_BYTES_MAX).unwrap());
            assert_eq!(page[0], LZ4);
            reader.add(page).unwrap();
        }
        assert!(reader.is_complete());
        assert_eq!(reader.take(), items);
    }

    #[test]
    fn an_oversized_page_is_refused_before_it_is_unpacked() {
        let mut body = vec![LZ4];
        body.extend(u32::MAX.to_le_bytes());
        body.extend([0; 64]);
        let mut reader = PageReader::<u64>::new(8);
        assert!(matches!(reader.add(&body), Err(WireError::TooMany { .. })));
    }

    #[test]
    fn more_items_than_announced_are_refused() {
        let mut reader = PageReader::<u64>::new(2);
        let pages = pack(&[1u64, 2, 3]);
        assert!(matches!(
            reader.add(&pages[0]),
            Err(WireError::TooMany { .. })
        ));
    }

    #[test]
    fn items_of_no_bytes_do_not_loop() {
        let mut reader = PageReader::<()>::new(usize::MAX);
        assert!(reader.add(&[STORED, 1, 0, 0, 0, 7]).is_err());
        assert!(reader.add(&[STORED, 0, 0, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn items_round_trip(items: Vec<(Vec<u8>, u32, Option<String>)>) {
            let mut reader = PageReader::<(Vec<u8>, u32, Option<String>)>::new(items.len());
            for page in pack(&items) {
                reader.add(&page).unwrap();
            }
            prop_assert!(reader.is_complete());
            prop_assert_eq!(reader.take(), items);
        }

        #[test]
        fn garbage_never_panics(encoding in 0u8..3, len in 0u32..300_000, payload: Vec<u8>) {
            let mut body = vec![encoding];
            body.extend(len.to_le_bytes());
            body.extend(&payload);
            let mut reader = PageReader::<(Vec<u8>, Vec<String>)>::new(10);
            let _refused_or_not = reader.add(&body);
            let _refused_or_not = reader.add(&payload);
        }
    }
}
