//! The pure decoders: the invariants of their results, and the limits of their memory.

use crate::{alloc, values};
use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use copperfs_overlay::wire::message::{self, Cleared, Reported};
use copperfs_overlay::wire::page::{PAGE_BODY_BYTES_MAX, PAGE_RAW_BYTES_MAX};
use copperfs_overlay::wire::{
    FrameHeader, FrameKind, HEADER_BYTES, Head, Hello, ORIGINS_MAX, PageReader, PageWriter,
    Question, Request, STAT_NAMES_MAX, XATTRS_MAX,
};
use copperfs_overlay::{Attributes, BLOCK_BYTES, BUNDLE_FILE_BYTES_MAX, Entry, Failure, ITEM_BYTES_MAX, ItemPath, LISTING_ENTRIES_MAX, RANGE_ALIGN, RANGE_BYTES_MAX, ReadRequest, ListRequest, StatRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::mem::size_of;

/// Memory that a decoder may allocate beside a multiple of its input: texts of errors, first allocations.
const SLACK_BYTES: usize = 512 << 10;

/// A stream of frames: headers are bounded and canonical, and each body goes to the decoder of its kind.
pub fn frames(mut data: &[u8]) {
    while let Some((header, rest)) = data.split_first_chunk::<HEADER_BYTES>() {
        let Ok(parsed) = FrameHeader::parse(*header) else {
            return;
        };
        assert_eq!(parsed.encode(), *header);
        assert!(parsed.len <= parsed.kind.body_max());
        assert!(parsed.kind.body_max() <= BLOCK_BYTES as u32);
        let len = parsed.len as usize;
        assert_eq!(FrameHeader::new(parsed.kind, len), Ok(parsed));
        // A cut body is decoded too.
        let (body, rest) = rest.split_at(len.min(rest.len()));
        match parsed.kind {
            FrameKind::Hello => decoded::<Hello>("hello", body),
            FrameKind::Request => request(body),
            FrameKind::Failure => decoded::<Failure>("failure", body),
            FrameKind::Head => decoded::<Head>("head", body),
            FrameKind::Cleared => decoded::<Cleared>("cleared", body),
            FrameKind::Report => decoded::<Reported>("report", body),
            FrameKind::Page => page_run::<Entry>(&[body], 100),
            _ => {}
        }
        data = rest;
    }
}

/// One body; the first byte selects its kind.
pub fn messages(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else {
        return;
    };
    match kind % 6 {
        0 => request(body),
        1 => decoded::<Head>("head", body),
        2 => decoded::<Hello>("hello", body),
        3 => decoded::<Cleared>("cleared", body),
        5 => decoded::<Reported>("report", body),
        _ => decoded::<Failure>("failure", body),
    }
}

/// A decoded value encodes to no more bytes, and decodes to the same value. The memory depends on the bytes of the input,
/// not on the lengths that they announce.
fn decoded<T: Serialize + DeserializeOwned + PartialEq + Debug>(what: &'static str, body: &[u8]) {
    // An element of a list may have a single byte, and lists grow by doubling.
    let allowed = body.len() * 4 * size_of::<Bytes>() + SLACK_BYTES;
    let Ok(value) = alloc::within(allowed, || message::decode::<T>(what, body)) else {
        return;
    };
    let again = message::encode(what, &value).expect("a decoded value can be encoded");
    assert!(again.len() <= body.len(), "{value:?}");
    assert_eq!(message::decode::<T>(what, &again).as_ref(), Ok(&value));
}

fn request(body: &[u8]) {
    decoded::<Question>("request", body);
    let Ok(Question { request, .. }) = message::decode("request", body) else {
        return;
    };
    let sound = request.check().is_ok();
    match &request {
        Request::List(ListRequest {
            path: asked, limit, ..
        }) => {
            inside(asked);
            assert!(!sound || (1..=LISTING_ENTRIES_MAX).contains(limit));
        }
        Request::Stat(StatRequest { parent, names, .. }) => {
            inside(parent);
            assert!(!sound || names.len() <= STAT_NAMES_MAX);
            for name in names.iter().filter(|name| sound && !name.is_empty()) {
                assert!(!name.contains(&b'/') && !name.contains(&0));
                assert!(name != ".." && name != ".");
                if let Ok(child) = parent.join(name) {
                    inside(&child);
                    assert!(child.is_within(parent) && child != *parent);
                }
            }
        }
        Request::Read(read) => {
            inside(&read.path);
            if sound {
                let last = read.first_block + (read.block_count - 1);
                assert!(ReadRequest::block_len(read.size, last) > 0);
            }
        }
        Request::ReadRange(range) => {
            inside(&range.path);
            if sound {
                assert!((1..=RANGE_BYTES_MAX).contains(&range.len));
                assert!(range.offset % RANGE_ALIGN == 0 && range.offset + range.len <= range.size);
                let last = (range.offset + range.len - 1) / BLOCK_BYTES;
                assert_eq!(last, range.block());
            }
        }
        Request::Item(item) => {
            inside(&item.path);
            if sound {
                let (all, wanted) = (item.item, item.wanted);
                assert!((1..=ITEM_BYTES_MAX).contains(&all.len));
                assert!(all.start + (all.len - 1) < item.size);
                assert!(wanted.len > 0 && all.start <= wanted.start);
                assert!(wanted.start + (wanted.len - 1) < all.start + all.len);
            }
        }
        Request::Find { len, .. } => {
            assert!(!sound || (1..=BLOCK_BYTES).contains(len));
        }
        Request::Xattrs { path }
        | Request::Usage { path }
        | Request::ClusterClear { path, .. }
        | Request::ClearBelow { path, .. } => inside(path),
        Request::Bundle(bundle) => {
            inside(&bundle.directory);
            for file in bundle.files.iter().filter(|_| sound) {
                assert!((1..=BUNDLE_FILE_BYTES_MAX).contains(&file.size));
                if let Ok(child) = bundle.directory.join(&file.name) {
                    inside(&child);
                    assert!(child.is_within(&bundle.directory));
                }
            }
        }
        Request::Origins { .. }
        | Request::ClusterReports { .. }
        | Request::ReportsBelow { .. }
        | Request::Warm { .. }
        | Request::WarmBelow { .. }
        | Request::Steer { .. }
        | Request::Command { .. }
        | Request::Held(_)
        | Request::Content { .. }
        | Request::Message => {}
        Request::Insert { len, .. } => {
            assert!(!sound || (1..=ITEM_BYTES_MAX).contains(len));
        }
    }
}

/// Every path is below the root of the namespace.
fn inside(path: &ItemPath) {
    let bytes = path.as_bytes();
    assert!(bytes.len() <= ItemPath::BYTES_MAX && !bytes.contains(&0));
    assert!(!bytes.starts_with(b"/") && !bytes.ends_with(b"/"));
    for name in path.components() {
        assert!(!name.is_empty() && name != b"." && name != b"..");
        assert!(name.len() <= ItemPath::NAME_BYTES_MAX);
    }
    assert_eq!(ItemPath::parse(bytes).as_ref(), Ok(path));
}

/// Pages of each kind of item. The first byte selects the kind, the second the number of expected items. Pages follow,
/// each after its length as `u16`; a page of odd length is wrapped as stored.
pub fn pages(data: &[u8]) {
    let Some(([kind, expected], mut rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let mut bodies = Vec::new();
    while let Some(([low, high], after)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let (body, after) = after.split_at(len.min(after.len()));
        rest = after;
        if low & 1 == 0 {
            bodies.push(body.to_vec());
        } else {
            let raw = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
            bodies.push([&[0][..], &raw, body].concat());
        }
    }
    let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    let expected = usize::from(*expected);
    match kind % 4 {
        0 => page_run::<Entry>(&bodies, expected * 400),
        1 => page_run::<Result<Attributes, Failure>>(&bodies, expected),
        2 => page_run::<(Bytes, Bytes)>(&bodies, (expected * 100).min(XATTRS_MAX)),
        _ => page_run::<()>(&bodies, expected),
    }
}

fn page_run<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    bodies: &[&[u8]],
    expected: usize,
) {
    let items = expected.max(1) * size_of::<T>().max(1) * 4;
    let allowed = bodies.len() * PAGE_RAW_BYTES_MAX * 2 + items + SLACK_BYTES;
    let found = alloc::within(allowed, || {
        let mut reader = PageReader::<T>::new(expected);
        for body in bodies {
            if reader.add(body).is_err() {
                return None;
            }
        }
        reader.is_complete().then(|| reader.take())
    });
    let Some(items) = found else { return };
    assert_eq!(items.len(), expected);
    packed(&items);
}

/// Items encode to bounded pages, and decode to the same items.
fn packed<T: Serialize + DeserializeOwned + PartialEq + Debug>(items: &[T]) {
    let mut writer = PageWriter::default();
    let mut reader = PageReader::<T>::new(items.len());
    let mut take = |page: Bytes| {
        assert!(page.len() <= PAGE_BODY_BYTES_MAX as usize);
        reader.add(&page).expect("our own page");
    };
    for item in items {
        match writer.push(item) {
            Ok(page) => page.into_iter().for_each(&mut take),
            // Too large for a page, so no peer can send it in one either.
            Err(_) => return,
        }
    }
    writer.finish().into_iter().for_each(&mut take);
    assert_eq!(reader.take(), items);
}

/// Paths and names, from any bytes.
pub fn paths(data: &[u8]) {
    let mut parts = data.splitn(3, |&byte| byte == b'\n');
    let (first, second) = (parts.next().unwrap_or(b""), parts.next().unwrap_or(b""));
    let (a, b) = (ItemPath::parse(first), ItemPath::parse(second));
    let climbs = |bytes: &[u8]| bytes.split(|&b| b == b'/').any(|name| name == b"..");
    assert!(a.is_err() || !(climbs(first) || first.contains(&0)));
    // Paths from the wire are parsed in the same way.
    let body = message::encode("path", &first.to_vec()).expect("bytes encode");
    assert_eq!(
        message::decode::<ItemPath>("path", &body).ok(),
        a.clone().ok()
    );
    let Ok(a) = a else { return };
    inside(&a);
    let shown = a.to_string();
    assert!(shown.starts_with('/') && !shown.chars().any(char::is_control));
    if let Some((parent, name)) = a.split() {
        inside(&parent);
        assert!(a.is_within(&parent) && !parent.is_within(&a));
        assert_eq!(parent.join(name).as_ref(), Ok(&a));
        assert_eq!(
            a.strip_prefix(&parent).map(|rest| rest.as_bytes().to_vec()),
            Some(name.to_vec())
        );
    } else {
        assert!(a.is_root());
    }
    if let Ok(joined) = a.join(second) {
        inside(&joined);
        assert!(joined.is_within(&a) && joined != a);
        assert_eq!(joined.split(), Some((a.clone(), second)));
    }
    let Ok(b) = b else { return };
    assert_eq!(a.strip_prefix(&b).is_some(), a.is_within(&b));
    if let Some(rest) = a.strip_prefix(&b) {
        inside(&rest);
        let rebuilt = rest.components().try_fold(b, |path, name| path.join(name));
        assert_eq!(rebuilt.as_ref(), Ok(&a));
    }
}

/// Every value decodes to itself, and valid values fit their frames.
pub fn round_trip(data: &[u8]) {
    let mut from = Unstructured::new(data);
    // Ends when the input is exhausted.
    let _exhausted = round_trip_of(&mut from);
}

fn round_trip_of(from: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    match u8::arbitrary(from)? % 7 {
        0 => {
            let (question, head) = (values::question(from)?, values::head(from)?);
            let body = same(FrameKind::Request, "request", &question);
            let request = question.request;
            if request.check().is_ok() {
                assert!(
                    FrameHeader::new(FrameKind::Request, body).is_ok(),
                    "{request:?}"
                );
            }
            if head.check(&request).is_ok() {
                // A valid request bounds the head of its answer.
                let requested = match &request {
                    Request::List(ListRequest { limit, .. }) => *limit,
                    Request::Stat(StatRequest { names, .. }) => names.len(),
                    Request::Xattrs { .. } => XATTRS_MAX,
                    Request::Origins { .. } => ORIGINS_MAX,
                    _ => 0,
                };
                assert!(head.items() as usize <= requested);
            }
            same(FrameKind::Head, "head", &head);
        }
        1 => drop(same(FrameKind::Hello, "hello", &values::hello(from)?)),
        2 => {
            same(FrameKind::Cleared, "cleared", &values::cleared(from)?);
            same(FrameKind::Report, "report", &values::reported(from)?);
        }
        3 => {
            let body = same(FrameKind::Failure, "failure", &values::failure(from)?);
            assert!(FrameHeader::new(FrameKind::Failure, body).is_ok());
        }
        4 => packed(&many(from, values::entry)?),
        5 => packed(&many(from, |from| match bool::arbitrary(from)? {
            true => Ok(Ok(values::attributes(from)?)),
            false => Ok(Err(values::failure(from)?)),
        })?),
        _ => packed(&many(from, |from| {
            Ok((values::bytes(from, 300)?, values::bytes(from, 70_000)?))
        })?),
    }
    Ok(())
}

fn many<T>(
    from: &mut Unstructured<'_>,
    mut one: impl FnMut(&mut Unstructured<'_>) -> arbitrary::Result<T>,
) -> arbitrary::Result<Vec<T>> {
    let mut items = Vec::new();
    while !from.is_empty() {
        items.push(one(from)?);
    }
    Ok(items)
}

/// Checks that `value` decodes to itself. Returns the length of its encoding.
fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    kind: FrameKind,
    what: &'static str,
    value: &T,
) -> usize {
    let body = message::encode(what, value).expect("every value can be encoded");
    assert_eq!(
        message::decode::<T>(what, &body).as_ref(),
        Ok(value),
        "{kind:?}"
    );
    body.len()
}
