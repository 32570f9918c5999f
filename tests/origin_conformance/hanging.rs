//! Storage that hangs in part, like a parallel filesystem with a dead data server: the other part stays
//! readable.

use crate::fixtures::{Backend, Posix, path, read, read_whole, stat};
use crate::silent_files::{BYTES, FILES, SilentFiles};
use crate::waiting::until;
use copperfs::origin::{ByteRange, HangingBound, Origin, OriginOptions};
use copperfs_overlay::{Attributes, Failure, FailureKind};
use futures_util::StreamExt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Files that answer, besides those that hang.
const HEALTHY: usize = 300;

/// An origin whose `silent/` hangs in READ, and that filesystem.
fn storage(options: &OriginOptions) -> Option<(Arc<Posix>, SilentFiles)> {
    let posix = Posix::with(options);
    std::fs::create_dir(posix.file("silent")).expect("a directory");
    std::fs::create_dir(posix.file("healthy")).expect("a directory");
    for number in 0..HEALTHY {
        std::fs::write(posix.file(&format!("healthy/{number}")), [1; 20_000]).expect("a file");
    }
    // Mounting needs privileges.
    let silent = SilentFiles::mount(&posix.file("silent"))?;
    Some((Arc::new(posix), silent))
}

fn options(hanging_max: usize) -> OriginOptions {
    OriginOptions {
        hang_timeout: Duration::from_secs(100),
        posix_concurrency: 16,
        hanging: Arc::new(HangingBound::new(hanging_max)),
        ..OriginOptions::default()
    }
}

fn in_one_directory(number: u64) -> String {
    format!("silent/one/{number:04}")
}

fn in_directories_of_their_own(number: u64) -> String {
    format!("silent/many/{number:04}/file")
}

fn whole(name: &str, attributes: &Attributes) -> ByteRange {
    ByteRange {
        path: path(name),
        version: attributes.version,
        size: attributes.size,
        offset: 0,
        length: attributes.size,
    }
}

/// Reads `name` in blocks, like the read path.
async fn read_blocks(origin: &dyn Origin, name: &str) -> Result<usize, Failure> {
    let attributes = stat(origin, name).await?;
    read_blocks_of(origin, name, &attributes).await
}

async fn read_blocks_of(
    origin: &dyn Origin,
    name: &str,
    attributes: &Attributes,
) -> Result<usize, Failure> {
    let blocks = origin.blocks(&whole(name, attributes)).expect("blocks");
    let mut blocks = blocks.await?;
    let mut bytes = 0;
    while let Some(block) = blocks.next().await {
        bytes += block?.0.len();
    }
    Ok(bytes)
}

/// Reads all healthy files one after the other; each read must succeed. Returns the time taken.
async fn healthy(posix: &Posix) -> Duration {
    let begun = Instant::now();
    for number in 0..HEALTHY {
        let name = format!("healthy/{number}");
        let read = read_blocks(posix.origin(), &name).await;
        assert_eq!(read.expect("a healthy file"), 20_000, "{name}");
    }
    begun.elapsed()
}

fn hanging(posix: &Posix) -> usize {
    posix.origin().hanging().map_or(0, |hanging| hanging.calls)
}

/// A thousand threads take their time to start and to end.
const SOON: Duration = Duration::from_secs(15);

async fn a_thousand_reads_hang(name: fn(u64) -> String) {
    let Some((posix, silent)) = storage(&options(2048)) else {
        return;
    };
    healthy(&posix).await;
    let usual = healthy(&posix).await;
    let mut reads = JoinSet::new();
    for number in 0..FILES {
        let posix = Arc::clone(&posix);
        reads.spawn(async move { read_blocks(posix.origin(), &name(number)).await });
    }
    until(SOON, "all reads hang", || hanging(&posix) == 1000).await;
    let beside = healthy(&posix).await;
    let ratio = beside.as_secs_f64() / usual.as_secs_f64();
    let measured =
        format!("healthy reads: {usual:?} alone, {beside:?} beside 1000 that hang: {ratio:.2}");
    drop(writeln!(std::io::stderr(), "{measured}"));
    assert_eq!(
        hanging(&posix),
        1000,
        "healthy reads do not count as hanging"
    );
    let oldest = posix.origin().hanging().expect("they hang");
    assert_eq!(oldest.action, "read");
    assert!(oldest.path.is_within(&path("silent")), "{}", oldest.path);
    // The data server answers again.
    silent.answer();
    while let Some(read) = reads.join_next().await {
        assert_eq!(read.expect("a task").expect("a file"), BYTES);
    }
    until(SOON, "nothing hangs", || hanging(&posix) == 0).await;
}

/// The client of a network filesystem caches attributes for a while. A file that was rewritten elsewhere is
/// detected by the server's attributes, not by the cached ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewrite_that_this_host_has_not_heard_of_is_no_read_of_the_old_version() {
    let Some((posix, storage)) = storage(&options(16)) else {
        return;
    };
    storage.answer();
    let name = in_one_directory(1);
    let old = stat(posix.origin(), &name).await.expect("a file");
    assert_eq!(read_blocks(posix.origin(), &name).await, Ok(BYTES));
    storage.rewrite();
    let blocks = read_blocks_of(posix.origin(), &name, &old).await;
    assert_eq!(blocks.expect_err("the new bytes").kind, FailureKind::Stale);
    let range = read(posix.origin(), &name, &old, 0, old.size).await;
    assert_eq!(range.expect_err("the new bytes").kind, FailureKind::Stale);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_reads_that_hang_leave_healthy_ones_alone() {
    a_thousand_reads_hang(in_one_directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_hang_in_a_thousand_directories_leave_healthy_ones_alone() {
    a_thousand_reads_hang(in_directories_of_their_own).await;
}

/// Above the bound, requests to a hanging filesystem fail at once; other filesystems are not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_the_bound_only_the_filesystem_that_hangs_fails_fast() {
    const MAX: usize = 64;
    let Some((posix, silent)) = storage(&options(MAX)) else {
        return;
    };
    let mut reads = JoinSet::new();
    for number in 0..FILES {
        let posix = Arc::clone(&posix);
        reads.spawn(async move { read_blocks(posix.origin(), &in_one_directory(number)).await });
    }
    // Hanging reads wait longer than the test takes, so these were refused.
    let mut refused = 0;
    while reads.len() > MAX + 16
        && let Some(read) = reads.join_next().await
    {
        let failure = read.expect("a task").expect_err("refused");
        assert_eq!(failure.kind, FailureKind::Unavailable);
        let detail = &failure.detail;
        assert!(
            detail.contains("calls into this filesystem hang"),
            "{detail}"
        );
        refused += 1;
    }
    assert!(refused >= 1000 - MAX - 16);
    let most = hanging(&posix);
    assert!((MAX..=MAX + 16).contains(&most), "{most} hang");
    healthy(&posix).await;
    silent.answer();
    while let Some(read) = reads.join_next().await {
        let _late = read.expect("a task");
    }
    until(SOON, "nothing hangs", || hanging(&posix) == 0).await;
    let read = read_whole(posix.origin(), &in_one_directory(7)).await;
    assert_eq!(read.expect("it is asked again").len(), BYTES);
}

/// A listing has the attributes of names that answer, and hanging names without attributes, however many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_hang_leave_the_places_to_others() {
    use crate::posix::Hanging;
    let posix = Posix::with(&OriginOptions {
        listing_attributes_timeout: Duration::from_secs(2),
        ..options(2048)
    });
    let mut mounts = Vec::new();
    for number in 0..40 {
        let point: PathBuf = posix.file(&format!("d/hang{number}"));
        std::fs::create_dir_all(&point).expect("a directory");
        let Some(mount) = Hanging::mount(point, "fuse") else {
            return;
        };
        mounts.push(mount);
    }
    for number in 0..20 {
        std::fs::write(posix.file(&format!("d/file{number}")), b"x").expect("a file");
    }
    let listing = posix.origin().list(path("d"), None, 1000).await;
    let listing = listing.expect("a listing");
    assert_eq!(listing.entries.len(), 60);
    for entry in &listing.entries {
        let answers = entry.name.starts_with(b"file");
        assert_eq!(entry.attributes.is_some(), answers, "{:?}", entry.name);
    }
    assert_eq!(hanging(&posix), 40);
    assert_eq!(stat(posix.origin(), "d/file3").await.expect("it").size, 1);
    drop(mounts);
    until(SOON, "nothing hangs", || hanging(&posix) == 0).await;
}
