//! The common behaviour of all origins. Each part runs with a backend of each kind. A part whose requirements a
//! kind lacks (`capabilities.rs`) says so, and the table at the end lists these parts.

mod keys;
mod listings;
mod ranges;
mod versions;

use crate::backends::{Objects, Web};
use crate::bundles;
use crate::capabilities::{self, Can, Kind};
use crate::fixtures::{Backend, Posix, names, path, pattern, read, read_whole, stat};
use bytes::Bytes;
use copperfs_overlay::{Cursor, Failure, FailureKind, FileKind};
use futures_util::future::BoxFuture;

/// One part of the suite.
struct Part {
    name: &'static str,
    needs: &'static [Can],
    run: for<'a> fn(&'a dyn Backend) -> BoxFuture<'a, ()>,
}

macro_rules! part {
    ($($name:ident)::+ $(, $needs:ident)*) => {
        Part {
            name: concat!($("/", stringify!($name)),+),
            needs: &[$(Can::$needs),*],
            run: |backend| Box::pin($($name)::+(backend)),
        }
    };
}

const PARTS: &[Part] = &[
    part!(lists_names_types_and_attributes, List),
    part!(stats_in_order),
    part!(failures_have_their_kinds),
    part!(failures_of_listings, List),
    part!(reads_many_at_once),
    part!(bundles::gives_bundles),
    part!(ranges::reads_any_range),
    part!(ranges::reads_files_without_bytes),
    part!(ranges::reads_beyond_four_gigabytes, Sparse),
    part!(versions::changes_are_stale),
    part!(versions::each_write_is_a_version, VersionPerWrite),
    part!(versions::the_same_bytes_again),
    part!(versions::replaced_while_being_read, Replace),
    part!(versions::gone_is_gone),
    part!(versions::gone_with_the_last_file, List),
    part!(keys::keeps_unusual_names),
    part!(keys::lists_unusual_names, List),
    part!(keys::keeps_backslashes, Backslash),
    part!(keys::keeps_trailing_dots, TrailingDot),
    part!(keys::a_key_that_is_also_a_prefix, KeyAndPrefix),
    part!(keys::keys_that_are_no_paths, AnyKey),
    part!(listings::pages_small, List),
    part!(listings::pages_large_directories, List),
];

impl Part {
    fn lacks(&self, kind: &Kind) -> Vec<Can> {
        let needs = self.needs.iter().copied();
        needs.filter(|need| !kind.can(*need)).collect()
    }
}

#[allow(
    clippy::print_stdout,
    reason = "durations and left out parts are for readers of the test's output"
)]
async fn suite(backend: &dyn Backend) {
    let kind = backend.kind();
    for part in PARTS {
        let lacks = part.lacks(kind);
        if lacks.is_empty() {
            let begin = std::time::Instant::now();
            (part.run)(backend).await;
            println!("{}: {} in {:?}", kind.name, part.name, begin.elapsed());
        } else {
            println!(
                "{}: {} does not apply: needs {lacks:?}",
                kind.name, part.name
            );
        }
    }
}

async fn lists_names_types_and_attributes(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("list/a", b"one".to_vec()).await;
    backend.put("list/dir/b", b"two".to_vec()).await;
    backend.put("list/dir/deeper/c", b"three".to_vec()).await;
    backend.put("listx/other", b"no".to_vec()).await;
    assert_eq!(names(origin, "list").await, ["a", "dir"]);
    assert_eq!(names(origin, "list/dir").await, ["b", "deeper"]);
    assert!(names(origin, "").await.contains(&"list".to_owned()));
    let listing = origin
        .list(path("list"), None, 100)
        .await
        .expect("a listing");
    assert_eq!(listing.directory.kind, FileKind::Directory);
    assert_eq!(listing.next, None);
    for entry in &listing.entries {
        let name = std::str::from_utf8(&entry.name).expect("text");
        let alone = stat(origin, &format!("list/{name}"))
            .await
            .expect("attributes");
        let along = entry.attributes.as_ref().expect("attributes come along");
        assert_eq!(entry.kind, alone.kind);
        // A version that was young in the listing may have settled since.
        assert!(along.version.is_state_of(&alone.version), "{name}");
        assert_eq!(
            (along.size, along.mtime, along.mode),
            (alone.size, alone.mtime, alone.mode),
            "{name}: the listing and stat agree"
        );
    }
}

async fn stats_in_order(backend: &dyn Backend) {
    backend.put("stat/f", b"12345".to_vec()).await;
    backend.put("stat/d/x", b"1".to_vec()).await;
    let wanted = ["f", "none", "", "d"].map(Bytes::from_static_str);
    let answers = backend
        .origin()
        .stat(path("stat"), wanted.to_vec())
        .await
        .expect("answers");
    let kinds: Vec<_> = answers
        .iter()
        .map(|answer| {
            answer
                .as_ref()
                .map(|found| found.kind)
                .map_err(|failure| failure.kind)
        })
        .collect();
    assert_eq!(
        kinds,
        [
            Ok(FileKind::File),
            Err(FailureKind::NotFound),
            Ok(FileKind::Directory),
            Ok(FileKind::Directory),
        ],
        "{answers:?}"
    );
    let file = answers[0].as_ref().expect("a file");
    assert_eq!(file.size, 5);
    assert!(file.mtime.seconds > 1_500_000_000, "a real time");
    let many: Vec<Bytes> = (0..50).map(|i| Bytes::from(format!("none-{i}"))).collect();
    let answers = backend
        .origin()
        .stat(path("stat"), many)
        .await
        .expect("answers");
    assert_eq!(answers.len(), 50);
    assert!(
        answers
            .iter()
            .all(|a| a.as_ref().is_err_and(|f| f.kind == FailureKind::NotFound))
    );
    let none = backend
        .origin()
        .stat(path("stat"), Vec::new())
        .await
        .expect("no answers");
    assert!(none.is_empty());
}

trait FromStaticStr {
    fn from_static_str(text: &'static str) -> Self;
}

impl FromStaticStr for Bytes {
    fn from_static_str(text: &'static str) -> Self {
        Self::from_static(text.as_bytes())
    }
}

/// The kind of a failure, which names its origin.
fn kind_of<T>(result: Result<T, Failure>) -> FailureKind {
    match result {
        Ok(_) => panic!("no failure"),
        Err(failure) => {
            assert!(failure.detail.contains("origin "), "{}", failure.detail);
            failure.kind
        }
    }
}

async fn failures_have_their_kinds(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("fail/file", b"x".to_vec()).await;
    let file = stat(origin, "fail/file").await.expect("attributes");
    let below = kind_of(stat(origin, "fail/file/below").await);
    assert!(matches!(
        below,
        FailureKind::NotADirectory | FailureKind::NotFound
    ));
    let missing = kind_of(stat(origin, "fail/none").await);
    assert_eq!(missing, FailureKind::NotFound);
    // An object store has no object of a directory's name.
    let directory = kind_of(read(origin, "fail", &file, 0, 1).await);
    let wanted = if backend.kind().can(Can::Directories) {
        FailureKind::IsADirectory
    } else {
        FailureKind::Stale
    };
    assert_eq!(directory, wanted);
}

async fn failures_of_listings(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("fail-list/file", b"x".to_vec()).await;
    for (dir, kind) in [
        ("none", FailureKind::NotFound),
        ("fail-list/none", FailureKind::NotFound),
        ("fail-list/file", FailureKind::NotADirectory),
    ] {
        assert_eq!(
            kind_of(origin.list(path(dir), None, 9).await),
            kind,
            "{dir}"
        );
    }
    let foreign = Some(Cursor(Bytes::from_static(b"?")));
    let foreign = origin.list(path("fail-list"), foreign, 9).await;
    assert_eq!(kind_of(foreign), FailureKind::Stale);
}

async fn reads_many_at_once(backend: &dyn Backend) {
    let origin = backend.origin();
    for i in 0..40_usize {
        backend
            .put(&format!("many-readers/{i}"), pattern(1000 * i))
            .await;
    }
    let reads = (0..40_usize).map(|i| async move {
        let content = read_whole(origin, &format!("many-readers/{i}"))
            .await
            .expect("bytes");
        assert!(content == pattern(1000 * i));
    });
    futures_util::future::join_all(reads).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn posix_conforms() {
    suite(&Posix::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_in_memory_conform() {
    suite(&Objects::memory().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_s3_server_conforms() {
    suite(&Objects::s3().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_of_google_conforms() {
    suite(&Objects::google().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azurite_conforms() {
    suite(&Objects::azure().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_server_conforms() {
    suite(&Web::with_ranges().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_server_without_ranges_conforms() {
    suite(&Web::without_ranges().await).await;
}

/// The parts that are left out for each kind of storage, and no others.
#[test]
fn left_out_parts() {
    let kinds = [
        &capabilities::POSIX,
        &capabilities::MEMORY,
        &capabilities::S3,
        &capabilities::GOOGLE,
        &capabilities::AZURE,
        &capabilities::WEB,
        &capabilities::WEB_WITHOUT_RANGES,
    ];
    let left_out = kinds.map(|kind| {
        let parts = PARTS.iter().filter(|part| !part.lacks(kind).is_empty());
        (kind.name, parts.map(|part| part.name).collect::<Vec<_>>())
    });
    let no_listing = [
        "/lists_names_types_and_attributes",
        "/failures_of_listings",
        "/versions/each_write_is_a_version",
        "/versions/gone_with_the_last_file",
        "/keys/lists_unusual_names",
        "/keys/a_key_that_is_also_a_prefix",
        "/keys/keys_that_are_no_paths",
        "/listings/pages_small",
        "/listings/pages_large_directories",
    ];
    const SPARSE: &str = "/ranges/reads_beyond_four_gigabytes";
    const BOTH: &str = "/keys/a_key_that_is_also_a_prefix";
    const NO_PATHS: &str = "/keys/keys_that_are_no_paths";
    let [posix, memory, s3, google, azure, web, whole] = left_out;
    assert_eq!(posix, ("POSIX", vec![BOTH, NO_PATHS]));
    assert_eq!(memory, ("objects in memory", vec![SPARSE, NO_PATHS]));
    assert_eq!(s3, ("S3", vec![SPARSE, BOTH, NO_PATHS]));
    assert_eq!(google.1, s3.1);
    assert_eq!(azure, ("Azure", vec![SPARSE, "/keys/keeps_backslashes"]));
    assert_eq!(web, ("web server", no_listing.to_vec()));
    let mut without_ranges = no_listing.to_vec();
    without_ranges.insert(2, SPARSE);
    assert_eq!(whole, ("web server without ranges", without_ranges));
}
