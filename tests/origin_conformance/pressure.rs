//! Many requests to one store: as many at a time as it can take, none too many, and never a mix.

use crate::faulty_server::{Reply, Request, Server, bucket, content};
use crate::fixtures::{path, pattern, quick};
use crate::waiting::until;
use bytes::Bytes;
use copperfs::origin::{
    ByteRange, CoalescedStorage, ObjectOrigin, Origin, OriginOptions, Origins, Retries,
};
use copperfs_overlay::{
    BundleFile, BundleRequest, FailureKind, Files, LISTING_ENTRIES_MAX, Listing,
};
use futures_util::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;

fn stubborn() -> OriginOptions {
    OriginOptions {
        retries: Retries {
            max: 50,
            timeout: Duration::from_secs(20),
            read_timeout: Duration::from_secs(5),
            ..quick().retries
        },
        ..quick()
    }
}

/// The parameter `name` of a request's query.
fn query<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let (_, query) = request.target.split_once('?')?;
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// A page of the objects `top/dir/0000` and on, each with its number as content and `ETag`.
fn page(request: &Request, count: usize) -> Reply {
    let first: usize = query(request, "continuation-token").map_or(0, |at| at.parse().expect("it"));
    let keys = query(request, "max-keys").map_or(1000, |keys| keys.parse().expect("a number"));
    let end = count.min(first + keys);
    let mut body = String::from("<ListBucketResult>");
    for number in first..end {
        body += &format!(
            "<Contents><Key>top/dir/{number:04}</Key><Size>4</Size><ETag>\"{number:04}\"</ETag>\
             <LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
        );
    }
    if end < count {
        body += &format!("<NextContinuationToken>{end}</NextContinuationToken>");
    }
    body += "</ListBucketResult>";
    Reply::Answer(200, String::new(), body.into_bytes())
}

fn object(request: &Request) -> Reply {
    let name = request.target.rsplit('/').next().unwrap_or_default();
    content(request, name, name.as_bytes())
}

fn is_list(request: &Request) -> bool {
    request.target.contains("list-type=2")
}

async fn listed(origins: &Origins) -> Listing {
    origins
        .list_page(path("data/dir"), None, LISTING_ENTRIES_MAX)
        .await
        .expect("a listing")
}

/// Bundles of all files of a listing, as the read path asks for them.
fn bundles(listing: &Listing, at_once: usize) -> Vec<BundleRequest> {
    let files: Vec<BundleFile> = listing
        .entries
        .iter()
        .map(|entry| {
            let attributes = entry.attributes.as_ref().expect("its attributes");
            BundleFile {
                name: entry.name.clone(),
                version: attributes.version,
                size: attributes.size,
                content: None,
            }
        })
        .collect();
    let request = |files: &[BundleFile]| BundleRequest {
        directory: path("data/dir"),
        files: files.to_vec(),
    };
    files.chunks(at_once).map(request).collect()
}

/// The names of the files in a bundle, whose bytes are all checked.
async fn brought(files: &impl Files, request: BundleRequest) -> Vec<Bytes> {
    let names: Vec<Bytes> = request.files.iter().map(|file| file.name.clone()).collect();
    let mut items = files.bundle(request).await.expect("a bundle");
    let mut found = Vec::new();
    while let Some(item) = items.next().await {
        let item = item.expect("an item");
        assert_eq!(item.bytes, names[item.index]);
        found.push(item.bytes);
    }
    found
}

/// A listing has versions and sizes, so that no further requests are needed: 5 LISTs and a GET for each file.
#[tokio::test]
async fn five_thousand_files_are_five_lists_and_a_get_each() {
    let server = Server::start(|request| match request {
        request if is_list(request) => page(request, 5000),
        request => object(request),
    })
    .await;
    let origins = Origins::open(&[bucket(&server)], &stubborn()).expect("an origin");
    let listing = listed(&origins).await;
    assert_eq!(listing.entries.len(), 5000);
    for request in bundles(&listing, 2000) {
        let wanted = request.files.len();
        assert_eq!(brought(&origins, request).await.len(), wanted);
    }
    let requests = server.requests();
    let count = |of: &dyn Fn(&Request) -> bool| requests.iter().filter(|r| of(r)).count();
    assert_eq!(count(&|r| is_list(r)), 5);
    assert_eq!(count(&|r| r.method == "HEAD"), 0);
    assert_eq!(count(&|r| r.method == "GET" && !is_list(r)), 5000);
    let most = requests.iter().map(|request| request.under_way).max();
    assert!(most <= Some(64), "{most:?} at a time");
}

/// A store that refuses requests above a limit gets fewer concurrent ones, and more when the limit rises.
#[tokio::test]
async fn a_storm_of_refusals_slows_the_askers_down_and_fails_none() {
    let room = Arc::new(AtomicUsize::new(8));
    let bound = Arc::clone(&room);
    let server = Server::start(move |request| {
        if is_list(request) {
            return page(request, 1200);
        }
        let full = request.under_way > bound.load(Ordering::SeqCst);
        let reply = if full {
            Reply::Answer(503, String::new(), b"<Code>SlowDown</Code>".to_vec())
        } else {
            object(request)
        };
        Reply::Later(Duration::from_millis(3), Box::new(reply))
    })
    .await;
    let origins = Origins::open(&[bucket(&server)], &stubborn()).expect("an origin");
    let mut requests = bundles(&listed(&origins).await, 400).into_iter();
    let begun = origins.pressure();
    assert_eq!((begun.throttled, begun.concurrency), (0, 32));

    let names = brought(&origins, requests.next().expect("one")).await;
    assert_eq!(names.len(), 400, "every file came");
    let stormy = origins.pressure();
    assert!(stormy.throttled > 0);
    assert!(stormy.concurrency < 20, "{}", stormy.concurrency);
    let late = server.requests().split_off(400);
    let most = late.iter().map(|request| request.under_way).max();
    assert!(most < Some(24), "still {most:?} at a time");

    room.store(1000, Ordering::SeqCst);
    for request in requests {
        assert_eq!(brought(&origins, request).await.len(), 400);
    }
    let calm = origins.pressure();
    assert!(
        calm.concurrency > stormy.concurrency,
        "{} after {}",
        calm.concurrency,
        stormy.concurrency
    );
}

/// A reader's request for a file goes before the bundle with that file, and the file is requested once.
#[tokio::test]
async fn a_reader_goes_before_a_bundle() {
    let server = Server::start(|request| {
        if is_list(request) {
            return page(request, 200);
        }
        Reply::Later(Duration::from_millis(5), Box::new(object(request)))
    })
    .await;
    let options = OriginOptions {
        object_concurrency: 4,
        ..stubborn()
    };
    let origins = Origins::open(&[bucket(&server)], &options).expect("an origin");
    let listing = listed(&origins).await;
    let last = listing.entries[199].attributes.clone().expect("attributes");
    let request = bundles(&listing, 200).remove(0);
    let storage = CoalescedStorage::new(Arc::new(origins), Duration::from_secs(20));
    let bundle = {
        let storage = storage.clone();
        tokio::spawn(async move { brought(&storage, request).await })
    };
    until(Duration::from_secs(10), "ten requests", || {
        server.requests().len() >= 10
    })
    .await;
    let request = copperfs_overlay::ReadRequest {
        path: path("data/dir/0199"),
        version: last.version,
        size: last.size,
        first_block: 0,
        block_count: 1,
        content: None,
        through: false,
    };
    let mut parts = storage.read(request).await.expect("a stream");
    let first = parts.next().await.expect("a part").expect("bytes");
    assert!(
        matches!(&first, copperfs_overlay::BlockPart::Bytes(bytes) if bytes == "0199"),
        "{first:?}"
    );
    assert_eq!(bundle.await.expect("a bundle").len(), 199, "all the others");
    let requests = server.requests();
    let asked: Vec<usize> = requests
        .iter()
        .filter(|request| request.target.ends_with("/0199"))
        .map(|request| request.index)
        .collect();
    assert_eq!(asked.len(), 1);
    assert!(asked[0] < 100, "it was request number {}", asked[0]);
    assert!(requests.iter().all(|request| request.under_way <= 4));
}

async fn opened(server: &Server, size: usize) -> (ObjectOrigin, ByteRange) {
    let origin = ObjectOrigin::connect(&bucket(server), &stubborn()).expect("an origin");
    let found = origin
        .stat(path(""), vec![Bytes::from_static(b"long")])
        .await;
    let found = found.expect("answers").remove(0).expect("attributes");
    let range = ByteRange {
        path: path("long"),
        version: found.version,
        size: size as u64,
        offset: 0,
        length: size as u64,
    };
    (origin, range)
}

/// `long` is an object whose parts have the tag `tag` of their first byte.
fn long(request: &Request, whole: &[u8], tag: impl Fn(usize) -> &'static str) -> Reply {
    if is_list(request) {
        return Reply::Answer(200, String::new(), b"<ListBucketResult/>".to_vec());
    }
    let first = request.range.map_or(0, |(from, _)| from);
    content(request, tag(first), whole)
}

#[tokio::test]
async fn a_long_range_comes_in_parts_at_a_time_and_in_order() {
    let whole = pattern(26 * MIB + 5);
    let served = whole.clone();
    let server = Server::start(move |request| {
        let reply = long(request, &served, |_| "v1");
        Reply::Later(Duration::from_millis(30), Box::new(reply))
    })
    .await;
    let (origin, mut range) = opened(&server, whole.len()).await;
    range.offset = MIB as u64;
    range.length -= range.offset;
    let mut pieces = origin.open(range).await.expect("a stream");
    let mut found = Vec::new();
    while let Some(piece) = pieces.next().await {
        found.extend_from_slice(&piece.expect("bytes"));
    }
    assert!(found == whole[MIB..], "other bytes");
    let mut ranges: Vec<_> = server.requests().iter().filter_map(|r| r.range).collect();
    ranges.sort_unstable();
    assert_eq!(ranges.len(), 7, "{ranges:?}");
    assert_eq!(ranges[0].0, MIB);
    assert_eq!(ranges[6].1 + 1, whole.len());
    assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
    let most = server
        .requests()
        .iter()
        .map(|request| request.under_way)
        .max();
    assert!(most >= Some(4), "{most:?} at a time");
}

/// The object is replaced between two parts: the reader gets bytes of the old one and then `Stale`.
#[tokio::test]
async fn parts_of_two_versions_never_follow_each_other() {
    let whole = pattern(24 * MIB);
    let served = whole.clone();
    let other: Vec<u8> = whole.iter().map(|byte| byte ^ 1).collect();
    let server = Server::start(move |request| {
        let new = request.range.is_some_and(|(from, _)| from >= 12 * MIB);
        let bytes = if new { &other } else { &served };
        long(request, bytes, |_| if new { "v2" } else { "v1" })
    })
    .await;
    let (origin, range) = opened(&server, whole.len()).await;
    let mut pieces = origin.open(range).await.expect("a stream");
    let mut found = Vec::new();
    let failure = loop {
        match pieces.next().await.expect("more, or a failure") {
            Ok(piece) => found.extend_from_slice(&piece),
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.kind, FailureKind::Stale, "{}", failure.detail);
    assert_eq!(found.len(), 12 * MIB);
    assert!(found == whole[..12 * MIB], "other bytes");
}

/// A reader that is cancelled drops its prefetched parts, and releases their memory.
#[tokio::test]
async fn parts_ahead_end_with_their_reader() {
    let whole = pattern(40 * MIB);
    let served = whole.clone();
    let server = Server::start(move |request| long(request, &served, |_| "v1")).await;
    let (origin, range) = opened(&server, whole.len()).await;
    for _ in 0..20 {
        let mut pieces = origin.open(range.clone()).await.expect("a stream");
        let first = pieces.next().await.expect("a piece").expect("bytes");
        assert!(whole.starts_with(&first));
    }
    let mut pieces = origin.open(range).await.expect("a stream");
    let mut count = 0;
    while let Some(piece) = pieces.next().await {
        count += piece.expect("bytes").len();
    }
    assert_eq!(count, whole.len());
}
