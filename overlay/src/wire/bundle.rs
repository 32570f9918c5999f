//! Bundles: many small files in a few frames. Pure.
//!
//! The concatenated bodies of an answer's bundle frames are a sequence of items. An item may begin in one frame and end
//! in another. It is the file's position in the request (`u32` little-endian), the BLAKE3 hash of its bytes (32 bytes),
//! and its bytes, whose number is in the request. Each position comes at most once, in any order. A done frame ends
//! the answer.

use super::{BUNDLE_NAME_BYTES_MAX, WireError, at_most, check_name, ensure};
use crate::model::{
    BUNDLE_FILE_BYTES_MAX, BUNDLE_FILES_MAX, BundleItem, BundleRequest, ContentHash,
};
use bytes::{BufMut, Bytes, BytesMut};

/// Bytes of an item before those of its file.
pub const ITEM_HEAD_BYTES: usize = 4 + 32;

/// Checks the limits that the types of a request do not express.
pub(super) fn check(request: &BundleRequest) -> Result<(), WireError> {
    let files = &request.files;
    ensure(!files.is_empty(), "a bundle of no files")?;
    at_most("files of a bundle", files.len(), BUNDLE_FILES_MAX)?;
    let names: usize = files.iter().map(|file| file.name.len()).sum();
    at_most("bytes of names", names, BUNDLE_NAME_BYTES_MAX)?;
    files.iter().try_for_each(|file| {
        check_name(&file.name)?;
        let fits = (1..=BUNDLE_FILE_BYTES_MAX).contains(&file.size);
        ensure(fits, "a file that no bundle can hold")
    })
}

/// Writes the part of an item before the bytes of its file.
pub(crate) fn put_head(out: &mut BytesMut, index: usize, hash: &ContentHash) {
    out.put_u32_le(u32::try_from(index).unwrap_or(u32::MAX));
    out.put_slice(&hash.0);
}

/// Decodes an answer as it arrives. Holds the bytes of one file. Does not verify hashes.
#[derive(Debug)]
pub struct BundleDecoder {
    /// Size of each file of the request; `None` once it has arrived.
    sizes: Box<[Option<usize>]>,
    head: [u8; ITEM_HEAD_BYTES],
    head_filled: usize,
    bytes: Vec<u8>,
}

impl BundleDecoder {
    /// A decoder for the answer to `request`, which must be valid ([`crate::wire::Request::check`]).
    #[must_use]
    pub fn new(request: &BundleRequest) -> Self {
        let sizes = request.files.iter();
        Self {
            sizes: sizes.map(|file| usize::try_from(file.size).ok()).collect(),
            head: [0; ITEM_HEAD_BYTES],
            head_filled: 0,
            bytes: Vec::new(),
        }
    }

    /// Takes the bytes of the current file from `piece`. Returns the file when it is complete. To be called until `piece`
    /// is empty.
    ///
    /// # Errors
    /// A position that is not in the request, or has arrived before.
    pub fn take(&mut self, piece: &mut Bytes) -> Result<Option<BundleItem>, WireError> {
        if self.head_filled < ITEM_HEAD_BYTES {
            let part = piece.split_to(piece.len().min(ITEM_HEAD_BYTES - self.head_filled));
            let end = self.head_filled + part.len();
            self.head[self.head_filled..end].copy_from_slice(&part);
            self.head_filled = end;
            if end < ITEM_HEAD_BYTES {
                return Ok(None);
            }
        }
        let [a, b, c, d, ..] = self.head;
        let index = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let Some(&Some(size)) = self.sizes.get(index) else {
            let wrong = "a file that was not asked for, or has come already";
            return Err(WireError::Impossible(wrong));
        };
        let part = piece.split_to(piece.len().min(size - self.bytes.len()));
        if self.bytes.capacity() == 0 {
            // The request bounds the size.
            self.bytes.reserve_exact(size);
        }
        self.bytes.extend_from_slice(&part);
        if self.bytes.len() < size {
            return Ok(None);
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(&self.head[4..]);
        self.head_filled = 0;
        self.sizes[index] = None;
        Ok(Some(BundleItem {
            index,
            bytes: std::mem::take(&mut self.bytes).into(),
            hash: ContentHash(hash),
        }))
    }

    /// Whether an answer may end at this point.
    #[must_use]
    pub fn is_between_files(&self) -> bool {
        self.head_filled == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BundleFile, ItemPath, Version};
    use proptest::prelude::*;

    fn request(sizes: &[usize]) -> BundleRequest {
        let files = sizes.iter().enumerate().map(|(at, &size)| BundleFile {
            name: format!("f{at}").into(),
            version: Version::from_data([1; 16]),
            size: size as u64,
            content: (at % 2 == 0).then_some(ContentHash([7; 32])),
        });
        BundleRequest {
            directory: ItemPath::parse(b"a/b").unwrap(),
            files: files.collect(),
        }
    }

    fn encode(items: &[BundleItem]) -> Vec<u8> {
        let mut out = BytesMut::new();
        for item in items {
            put_head(&mut out, item.index, &item.hash);
            out.put_slice(&item.bytes);
        }
        out.to_vec()
    }

    fn item(index: usize, size: usize) -> BundleItem {
        BundleItem {
            index,
            bytes: vec![u8::try_from(index % 256).unwrap(); size].into(),
            hash: ContentHash([u8::try_from(index % 256).unwrap(); 32]),
        }
    }

    fn decode(
        decoder: &mut BundleDecoder,
        bytes: &[u8],
        piece: usize,
    ) -> Result<Vec<BundleItem>, WireError> {
        let mut items = Vec::new();
        for chunk in bytes.chunks(piece) {
            let mut chunk = Bytes::copy_from_slice(chunk);
            while !chunk.is_empty() {
                items.extend(decoder.take(&mut chunk)?);
            }
        }
        Ok(items)
    }

    #[test]
    fn requests_are_checked() {
        assert_eq!(check(&request(&[1, 20_000, 256 << 10])), Ok(()));
        assert!(check(&request(&[])).is_err());
        assert!(check(&request(&[0])).is_err());
        assert!(check(&request(&[(256 << 10) + 1])).is_err());
        assert!(check(&request(&vec![1; BUNDLE_FILES_MAX + 1])).is_err());
        let mut outside = request(&[1]);
        outside.files[0].name = Bytes::from_static(b"..");
        assert!(check(&outside).is_err());
        let mut wordy = request(&vec![1; 1000]);
        for file in &mut wordy.files {
            file.name = vec![b'a'; 255].into();
        }
        assert!(check(&wordy).is_err());
    }

    #[test]
    fn the_largest_request_fits_its_frame() {
        use crate::wire::{FrameHeader, FrameKind, Request, message};
        let mut largest = request(&vec![256 << 10; BUNDLE_FILES_MAX]);
        for file in &mut largest.files {
            file.name = vec![b'a'; BUNDLE_NAME_BYTES_MAX / BUNDLE_FILES_MAX].into();
            file.content = Some(ContentHash([7; 32]));
        }
        largest.directory = ItemPath::parse(&b"abc/".repeat(1000)).unwrap();
        let largest = Request::Bundle(largest);
        assert_eq!(largest.check(), Ok(()));
        let body = message::encode("request", &largest).unwrap();
        assert!(FrameHeader::new(FrameKind::Request, body.len()).is_ok());
    }

    #[test]
    fn positions_must_be_requested_and_come_once() {
        let request = request(&[3, 3]);
        for wrong in [
            vec![item(0, 3), item(0, 3)],
            vec![item(0, 3), item(1, 3), item(0, 3)],
            vec![item(2, 3)],
            vec![item(usize::MAX, 3)],
        ] {
            let mut decoder = BundleDecoder::new(&request);
            assert!(decode(&mut decoder, &encode(&wrong), 1000).is_err());
        }
    }

    proptest! {
        #[test]
        fn items_round_trip_in_pieces_of_any_size(
            sizes in proptest::collection::vec(1usize..3000, 1..20),
            left_out: u32,
            piece in 1usize..5000,
        ) {
            let request = request(&sizes);
            let items: Vec<_> = sizes
                .iter()
                .enumerate()
                .filter(|(at, _)| left_out & (1 << at) == 0)
                .map(|(at, &size)| item(at, size))
                .collect();
            let bytes = encode(&items);
            let mut decoder = BundleDecoder::new(&request);
            prop_assert_eq!(decode(&mut decoder, &bytes, piece).unwrap(), items);
            prop_assert!(decoder.is_between_files());
            for cut in [1, bytes.len() / 2] {
                let mut decoder = BundleDecoder::new(&request);
                if cut > 0 && cut < bytes.len() {
                    decode(&mut decoder, &bytes[..bytes.len() - cut], piece).unwrap();
                    let whole = encode(&[]);
                    prop_assert!(whole.is_empty());
                }
            }
        }

        #[test]
        fn garbage_is_refused_or_bounded(
            bytes in proptest::collection::vec(any::<u8>(), 0..4000),
            piece in 1usize..500,
        ) {
            let request = request(&[1, 40, 1000]);
            let mut decoder = BundleDecoder::new(&request);
            if let Ok(items) = decode(&mut decoder, &bytes, piece) {
                prop_assert!(items.len() <= 3);
            }
        }
    }
}
