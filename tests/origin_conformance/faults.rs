//! Misbehaving storage servers, and the results for their readers.

use crate::faulty_server::{Reply, Request, Server, content};
use crate::fixtures::{names, path, pattern, quick, read, read_whole, stat};
use crate::waiting::until_some;
use copperfs::origin::{ObjectOrigin, Origin, OriginSpec};
use copperfs_overlay::{FailureKind, FileKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// An operation that takes longer than this hangs: the timeouts of `quick` add up to some seconds.
const HUNG: Duration = Duration::from_secs(60);

/// A plain HTTP server as origin.
fn web(server: &Server) -> ObjectOrigin {
    at(&format!("http://someone:pass-word@{}/base", server.address))
}

fn at(uri: &str) -> ObjectOrigin {
    let spec = OriginSpec {
        prefix: path("web"),
        uri: uri.to_owned(),
        options: BTreeMap::new(),
    };
    ObjectOrigin::connect(&spec, &quick()).expect("an origin")
}

/// An S3 bucket of the faulty server.
fn bucket(server: &Server) -> ObjectOrigin {
    let spec = OriginSpec {
        prefix: path("data"),
        uri: "s3://bucket/top".to_owned(),
        options: BTreeMap::from([
            ("endpoint".to_owned(), format!("http://{}", server.address)),
            ("allow_http".to_owned(), "true".to_owned()),
            ("access_key_id".to_owned(), "the-key".to_owned()),
            ("secret_access_key".to_owned(), "the-secret".to_owned()),
        ]),
    };
    ObjectOrigin::connect(&spec, &quick()).expect("an origin")
}

fn status(code: u16) -> Reply {
    Reply::Answer(code, String::new(), b"<Error>the-secret</Error>".to_vec())
}

fn is_slashed(request: &Request) -> bool {
    request.target.ends_with('/')
}

#[tokio::test]
async fn statuses_become_failures_of_their_kinds() {
    for (code, kind) in [
        (401, FailureKind::PermissionDenied),
        (403, FailureKind::PermissionDenied),
        (404, FailureKind::NotFound),
        (416, FailureKind::Stale),
        (418, FailureKind::Io),
        (500, FailureKind::Unavailable),
        (503, FailureKind::Unavailable),
    ] {
        let server = Server::start(move |_| status(code)).await;
        for origin in [web(&server), bucket(&server)] {
            let failure = stat(&origin, "a").await.expect_err("a failure");
            assert_eq!(failure.kind, kind, "{code}: {}", failure.detail);
            for secret in ["the-secret", "the-key", "pass-word"] {
                assert!(!failure.detail.contains(secret), "{}", failure.detail);
            }
            assert!(failure.detail.contains("stat /a: "), "{}", failure.detail);
        }
    }
}

#[tokio::test]
async fn retries_are_bounded() {
    let server = Server::start(|_| status(500)).await;
    let origin = bucket(&server);
    let failure = origin
        .list(path(""), None, 10)
        .await
        .expect_err("a failure");
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert_eq!(server.requests().len(), 1 + quick().retries.max);
}

#[tokio::test]
async fn a_server_that_recovers_is_no_failure() {
    let server = Server::start(|request| match request.index {
        0 | 1 => status(503),
        2 => status(500),
        _ if is_slashed(request) => status(404),
        _ => content(request, "v1", b"fine at last"),
    })
    .await;
    assert_eq!(
        read_whole(&web(&server), "a").await.expect("bytes"),
        b"fine at last"
    );
}

#[tokio::test]
async fn a_server_that_is_down_says_so() {
    let server = Server::start(|_| status(200)).await;
    let origin = web(&server);
    let address = server.address;
    let uri = format!("http://{address}/base");
    drop(server);
    until_some(Duration::from_secs(5), "the server is gone", async || {
        let connected = tokio::net::TcpStream::connect(address).await;
        connected.is_err().then_some(())
    })
    .await;
    let failure = stat(&origin, "a").await.expect_err("nobody there");
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert!(
        failure.detail.contains("Connection refused"),
        "{}",
        failure.detail
    );
    assert!(failure.detail.contains(&uri), "{}", failure.detail);
}

#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to_in_the_clear() {
    let server = Server::start(|_| status(200)).await;
    let failure = stat(&at(&format!("https://{}/base", server.address)), "a").await;
    let failure = failure.expect_err("no TLS there");
    assert_eq!(failure.kind, FailureKind::Unavailable, "{}", failure.detail);
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let server = Server::start(|_| Reply::Silence).await;
    let origin = web(&server);
    let asked = tokio::time::timeout(HUNG, stat(&origin, "a"));
    let failure = asked.await.expect("it hangs").expect_err("silence");
    assert_eq!(failure.kind, FailureKind::Unavailable, "{}", failure.detail);
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_broke() {
    let whole = pattern(300_000);
    let served = whole.clone();
    let cuts = AtomicUsize::new(0);
    let server = Server::start(move |request| {
        if is_slashed(request) {
            return status(404);
        }
        match content(request, "v1", &served) {
            Reply::Answer(code, headers, body)
                if request.method == "GET" && cuts.fetch_add(1, Ordering::SeqCst) < 2 =>
            {
                let sent = body.len() / 2;
                Reply::Cut(code, headers, body, sent)
            }
            reply => reply,
        }
    })
    .await;
    assert!(read_whole(&web(&server), "a").await.expect("bytes") == whole);
}

#[tokio::test]
async fn a_transfer_that_always_breaks_is_a_failure_and_never_short() {
    let server = Server::start(|request| {
        if is_slashed(request) {
            return status(404);
        }
        // Without an ETag, the interrupted answer cannot be resumed.
        Reply::Cut(200, String::new(), vec![7; 1000], 500)
    })
    .await;
    let failure = read_whole(&web(&server), "a")
        .await
        .expect_err("half of it");
    assert!(matches!(
        failure.kind,
        FailureKind::Unavailable | FailureKind::Io
    ));
}

#[tokio::test]
async fn versions_never_mix_in_one_read() {
    // Half of one version, and another one when the transfer is to be continued.
    let gets = AtomicUsize::new(0);
    let server = Server::start(move |request| {
        if is_slashed(request) {
            return status(404);
        }
        if request.method == "HEAD" {
            return content(request, "v1", &[1; 1000]);
        }
        match gets.fetch_add(1, Ordering::SeqCst) {
            0 => match content(request, "v1", &[1; 1000]) {
                Reply::Answer(code, headers, body) => Reply::Cut(code, headers, body, 500),
                reply => reply,
            },
            _ => content(request, "v2", &[2; 1000]),
        }
    })
    .await;
    let origin = web(&server);
    let attributes = stat(&origin, "a").await.expect("attributes");
    read(&origin, "a", &attributes, 0, 1000)
        .await
        .expect_err("two versions");
    let stale = read(&origin, "a", &attributes, 0, 1000).await;
    assert_eq!(
        stale.expect_err("the second version").kind,
        FailureKind::Stale
    );
}

/// A web server's tag is that of the file when its answer began: nginx makes it of time and size.
#[tokio::test]
async fn the_tag_of_a_web_server_is_checked_at_the_end() {
    let server = Server::start(|request| {
        if is_slashed(request) {
            return status(404);
        }
        let later = request.index > 2 && request.method == "HEAD";
        content(request, if later { "5e0-6" } else { "5e0-5" }, b"12345")
    })
    .await;
    let origin = web(&server);
    let attributes = stat(&origin, "a").await.expect("attributes");
    let stale = read(&origin, "a", &attributes, 0, 5).await;
    assert_eq!(
        stale.expect_err("changed meanwhile").kind,
        FailureKind::Stale
    );
}

#[tokio::test]
async fn without_a_tag_the_version_is_checked_at_the_end() {
    const OLD: &str = "last-modified: Wed, 01 Jan 2020 00:00:00 GMT\r\n";
    const NEW: &str = "last-modified: Wed, 01 Jan 2020 00:00:05 GMT\r\n";
    let server = Server::start(|request| {
        let heads = request.index > 2 && request.method == "HEAD";
        let time = if heads { NEW } else { OLD };
        if is_slashed(request) {
            return status(404);
        }
        Reply::Answer(200, time.to_owned(), b"12345".to_vec())
    })
    .await;
    let origin = web(&server);
    let attributes = stat(&origin, "a").await.expect("attributes");
    assert_eq!(attributes.mtime.seconds, 1_577_836_800);
    let stale = read(&origin, "a", &attributes, 0, 5).await;
    assert_eq!(
        stale.expect_err("changed meanwhile").kind,
        FailureKind::Stale
    );
}

#[tokio::test]
async fn a_server_without_ranges_is_read_all_the_same() {
    let whole = pattern(100_000);
    let served = whole.clone();
    let server = Server::start(move |request| {
        if is_slashed(request) {
            return status(404);
        }
        Reply::Answer(200, "etag: \"v\"\r\n".to_owned(), served.clone())
    })
    .await;
    let origin = web(&server);
    let attributes = stat(&origin, "a").await.expect("attributes");
    let bytes = read(&origin, "a", &attributes, 70_000, 20_000)
        .await
        .expect("bytes");
    assert!(bytes == whole[70_000..90_000]);
}

#[tokio::test]
async fn a_web_server_is_walked_by_name() {
    let server = Server::start(|request| match request.target.as_str() {
        "/base/dir/" => Reply::Answer(200, String::new(), b"<html>".to_vec()),
        // Servers of files redirect the name of a directory like this.
        "/base/dir" => Reply::Answer(301, "location: /base/dir/\r\n".to_owned(), Vec::new()),
        "/base/dir/f" => content(request, "v", b"content"),
        _ => status(404),
    })
    .await;
    let origin = web(&server);
    assert_eq!(
        stat(&origin, "dir").await.expect("a directory").kind,
        FileKind::Directory
    );
    assert_eq!(
        stat(&origin, "dir/f").await.expect("a file").kind,
        FileKind::File
    );
    assert_eq!(
        stat(&origin, "none").await.expect_err("none").kind,
        FailureKind::NotFound
    );
    assert_eq!(
        stat(&origin, "").await.expect("the top").kind,
        FileKind::Directory
    );
    assert_eq!(
        read_whole(&origin, "dir/f").await.expect("bytes"),
        b"content"
    );
    let failure = origin
        .list(path("dir"), None, 10)
        .await
        .expect_err("no listing");
    assert_eq!(failure.kind, FailureKind::PermissionDenied);
}

/// An S3 listing of `keys`, a page at a time.
fn s3_listing(request: &Request, keys: &[&str]) -> Reply {
    let query = |name: &str| {
        let query = request.target.split_once('?')?.1;
        let value = query
            .split('&')
            .find_map(|pair| pair.strip_prefix(&format!("{name}=")))?;
        Some(
            url::form_urlencoded::parse(format!("v={value}").as_bytes())
                .next()?
                .1
                .into_owned(),
        )
    };
    let prefix = query("prefix").unwrap_or_default();
    let after = query("continuation-token")
        .or_else(|| query("start-after"))
        .unwrap_or_default();
    let max: usize = query("max-keys")
        .and_then(|max| max.parse().ok())
        .unwrap_or(1000);
    let mut items: Vec<(String, bool)> = Vec::new();
    for key in keys {
        let Some(rest) = key.strip_prefix(prefix.as_str()) else {
            continue;
        };
        let item = match rest.split_once('/') {
            Some((name, _)) => (format!("{prefix}{name}/"), true),
            None => ((*key).to_owned(), false),
        };
        if item.0.as_str() > after.as_str() && *key > after.as_str() && !items.contains(&item) {
            items.push(item);
        }
    }
    items.sort();
    let more = items.len() > max;
    items.truncate(max);
    let mut xml = String::from("<ListBucketResult>");
    for (item, is_prefix) in &items {
        xml += &if *is_prefix {
            format!("<CommonPrefixes><Prefix>{item}</Prefix></CommonPrefixes>")
        } else {
            format!(
                "<Contents><Key>{item}</Key><Size>1</Size><ETag>\"t\"</ETag>\
                 <LastModified>2020-01-01T00:00:00.123Z</LastModified></Contents>"
            )
        };
    }
    if let (true, Some((last, _))) = (more, items.last()) {
        xml += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
    }
    Reply::Answer(
        200,
        String::new(),
        (xml + "</ListBucketResult>").into_bytes(),
    )
}

#[tokio::test]
async fn keys_that_cannot_be_names_are_not_shown() {
    const KEYS: &[&str] = &[
        "top/",
        "top/../up",
        "top/./here",
        "top//empty",
        "top/a",
        "top/a-b",
        "top/a/below",
        "top/a.c",
        "top/dir/",
        "top/good",
        "top/x//y",
        "top/x/z",
        "top/zz",
    ];
    let server = Server::start(|request| match request.method.as_str() {
        "GET" => s3_listing(request, KEYS),
        _ => status(404),
    })
    .await;
    let origin = bucket(&server);
    // `a` is an object and a prefix: the directory is shown.
    assert_eq!(
        names(&origin, "").await,
        ["a", "a-b", "a.c", "dir", "good", "x", "zz"]
    );
    assert_eq!(names(&origin, "x").await, ["z"]);
    assert_eq!(names(&origin, "dir").await, Vec::<String>::new());
    assert_eq!(names(&origin, "a").await, ["below"]);
    assert_eq!(
        stat(&origin, "a").await.expect("it").kind,
        FileKind::Directory
    );
    // Whatever the page's length, each name is shown once and the object `a` never.
    for limit in 1..8 {
        let pages = crate::fixtures::list_all(&origin, "", limit)
            .await
            .expect("pages");
        assert!(pages.iter().all(|page| page.entries.len() <= limit));
        let mut seen: Vec<_> = pages
            .iter()
            .flat_map(|page| &page.entries)
            .map(|entry| {
                (
                    String::from_utf8_lossy(&entry.name).into_owned(),
                    entry.kind,
                )
            })
            .collect();
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        let (shown, kinds): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
        assert_eq!(
            shown,
            ["a", "a-b", "a.c", "dir", "good", "x", "zz"],
            "limit {limit}"
        );
        assert_eq!(kinds[0], FileKind::Directory, "limit {limit}");
    }
}
