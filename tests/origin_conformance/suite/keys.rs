//! Names and keys of all sorts.

use super::kind_of;
use crate::fixtures::{Backend, list_all, names, path, read_whole, stat};
use bytes::Bytes;
use copperfs_overlay::{FailureKind, FileKind};

/// 255 bytes, the most of a name, of one-byte letters and of four-byte ones.
fn long_names() -> [String; 2] {
    ["n".repeat(255), format!("abc{}", "🦀".repeat(63))]
}

fn unusual() -> Vec<String> {
    let fixed = [
        "with space",
        " leading space",
        "trailing space ",
        "ünï©ødé-文件-🦀",
        // The same letter in both of its forms.
        "nfc-\u{e9}",
        "nfd-e\u{301}",
        "both-\u{e9}",
        "both-e\u{301}",
        "right-to-left-עברית-العربية",
        "👩\u{200d}🔬",
        "percent%20sign%",
        "%2F",
        "%",
        "plus+and&question?hash#",
        "semi;colon=at@dollar$comma,",
        "colon:star*bar|less<more>",
        "'quotes\"`",
        "-dash",
        "~tilde",
        "[brackets]{braces}^",
        "...",
        ".hidden",
        "..two-dots",
    ];
    let fixed = fixed.map(str::to_owned);
    fixed.into_iter().chain(long_names()).collect()
}

async fn reads_back(backend: &dyn Backend, dir: &str, names: &[String]) {
    for name in names {
        let file = format!("{dir}/{name}");
        backend.put(&file, name.as_bytes().to_vec()).await;
    }
    for name in names {
        let content = read_whole(backend.origin(), &format!("{dir}/{name}")).await;
        let content = content.unwrap_or_else(|failure| panic!("{name}: {}", failure.detail));
        assert_eq!(content, name.as_bytes(), "{name}");
    }
}

async fn listed(backend: &dyn Backend, dir: &str) -> Vec<String> {
    names(backend.origin(), dir).await
}

pub(super) async fn keeps_unusual_names(backend: &dyn Backend) {
    reads_back(backend, "names", &unusual()).await;
    reads_back(backend, "names/sub ü%2F+ dir", &["below".to_owned()]).await;
    let too_long = Bytes::from(vec![b'n'; 256]);
    let not_utf8 = Bytes::from_static(b"\xff\xfe");
    let control = Bytes::from_static(b"new\nline");
    let origin = backend.origin();
    for name in [too_long, not_utf8, control] {
        let mut answers = origin
            .stat(path("names"), vec![name])
            .await
            .expect("an answer");
        let kind = kind_of(answers.remove(0));
        let kinds = [FailureKind::NotFound, FailureKind::NameTooLong];
        assert!(kinds.contains(&kind), "{kind:?}");
    }
}

pub(super) async fn lists_unusual_names(backend: &dyn Backend) {
    let mut expected = unusual();
    expected.push("sub ü%2F+ dir".to_owned());
    expected.sort();
    assert_eq!(listed(backend, "names").await, expected);
    assert_eq!(listed(backend, "names/sub ü%2F+ dir").await, ["below"]);
}

pub(super) async fn keeps_backslashes(backend: &dyn Backend) {
    let names = ["back\\slash", "\\", "\\\\twice"].map(str::to_owned);
    reads_back(backend, "backslash", &names).await;
}

pub(super) async fn keeps_trailing_dots(backend: &dyn Backend) {
    let names = ["one.", "two..", "dir.with.dots."].map(str::to_owned);
    reads_back(backend, "dots", &names).await;
}

/// The directory is shown, the object of its name is not.
pub(super) async fn a_key_that_is_also_a_prefix(backend: &dyn Backend) {
    let origin = backend.origin();
    for key in [
        "both/a",
        "both/a/below",
        "both/a-b",
        "both/a.c",
        "both/ab",
        "both/z",
    ] {
        backend.put(key, b"x".to_vec()).await;
    }
    let found = stat(origin, "both/a").await.expect("attributes");
    assert_eq!(found.kind, FileKind::Directory);
    assert_eq!(names(origin, "both/a").await, ["below"]);
    for limit in 1..=6 {
        let pages = list_all(origin, "both", limit).await.expect("pages");
        let mut entries: Vec<_> = pages.into_iter().flat_map(|page| page.entries).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<&[u8]> = entries.iter().map(|entry| &*entry.name).collect();
        let expected: [&[u8]; 5] = [b"a", b"a-b", b"a.c", b"ab", b"z"];
        assert_eq!(names, expected, "limit {limit}");
        assert_eq!(entries[0].kind, FileKind::Directory, "limit {limit}");
    }
    backend.remove("both/a/below").await;
    let found = stat(origin, "both/a").await.expect("attributes");
    assert_eq!(found.kind, FileKind::File, "nothing lies below it any more");
}

pub(super) async fn keys_that_are_no_paths(backend: &dyn Backend) {
    let origin = backend.origin();
    let keys = [
        "odd/",
        "odd//empty",
        "odd/a",
        "odd/b//c",
        "odd/b/d",
        "odd/dir/",
        "odd/only//below",
        "odd/z",
    ];
    backend.put_keys(&keys).await;
    for limit in [1, 2, 3, 100] {
        let pages = list_all(origin, "odd", limit).await.expect("pages");
        let entries = pages.iter().flat_map(|page| &page.entries);
        let mut names: Vec<_> = entries.map(|entry| entry.name.clone()).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "dir", "only", "z"], "limit {limit}");
    }
    assert_eq!(names(origin, "odd/b").await, ["d"]);
    assert_eq!(names(origin, "odd/dir").await, Vec::<String>::new());
    assert_eq!(names(origin, "odd/only").await, Vec::<String>::new());
    for directory in ["odd", "odd/b", "odd/dir", "odd/only"] {
        let found = stat(origin, directory).await.expect(directory);
        assert_eq!(found.kind, FileKind::Directory, "{directory}");
    }
}
