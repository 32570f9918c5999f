use super::open::place_hash;
use super::*;
use crate::job::Proc;
use crate::model::slots::{STRIPE_BYTES, SlotTable, slot_of, slot_of_content};
use crate::model::{
    DatasetDecision, DatasetSpec, HomeNode, JobDecision, JobNode, JobReport, Serial,
};
use crate::testing::{NamedBytes, manifest, path};
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Extent, FailureKind, RangeAnswer, Standing, Version};
use futures_util::FutureExt;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

/// Homes without items that keep the items that they read, and record their requests. Byte `i` of
/// every file is `i % 251`.
#[derive(Default)]
struct Fake {
    asked: Mutex<Vec<(Option<u32>, ItemRequest)>>,
    kept: Mutex<HashSet<(String, u64)>>,
    gone: Mutex<HashSet<u32>>,
    greedy: bool,
    /// They never answer a request with a payment.
    silent: bool,
    /// Storage has other bytes than any manifest says.
    outdated: bool,
    /// They keep nothing.
    full: bool,
    /// All of them are on the reader's node, and keep items in memory.
    here: bool,
    asked_at_once: Mutex<Vec<ItemRequest>>,
}

impl HomeClient for Arc<Fake> {
    fn content(
        &self,
        _rank: u32,
        _hash: ContentHash,
    ) -> BoxFuture<'static, Result<Option<Bytes>, Failure>> {
        crate::testing::refuse()
    }

    fn insert(
        &self,
        _rank: u32,
        _hash: ContentHash,
        _bytes: Bytes,
    ) -> BoxFuture<'static, Result<Insertion, Failure>> {
        crate::testing::refuse()
    }

    fn held(
        &self,
        _rank: u32,
        _request: HeldRequest,
    ) -> BoxFuture<'static, Result<HeldAnswer, Failure>> {
        crate::testing::refuse()
    }

    fn try_ask(&self, rank: u32, request: &ItemRequest) -> Option<Vec<RangeAnswer>> {
        assert_eq!(request.fault(), None, "{request:?}");
        assert!((1..4).contains(&rank) && request.payment == 0 && !request.is_uncached);
        let key = (request.path.to_string(), request.item.start);
        (self.here && self.kept.lock().contains(&key)).then(|| {
            self.asked_at_once.lock().push(request.clone());
            request.hashed(&bytes_of(request.wanted))
        })
    }

    fn ask(
        &self,
        rank: Option<u32>,
        request: ItemRequest,
    ) -> BoxFuture<'static, Result<ItemAnswer, Failure>> {
        let this = Self::clone(self);
        async move {
            assert_eq!(request.fault(), None, "{request:?}");
            this.asked.lock().push((rank, request.clone()));
            if rank.is_some_and(|rank| this.gone.lock().contains(&rank)) {
                return Err(Failure::new(FailureKind::Unavailable, "gone"));
            }
            if this.outdated && request.content.is_some() {
                return Err(Failure::new(FailureKind::Stale, "other bytes"));
            }
            let key = (request.path.to_string(), request.item.start);
            let cached = this.kept.lock().contains(&key);
            if !cached && (request.payment < request.wanted.len || this.greedy) {
                let cost = request.wanted.len + u64::from(this.greedy);
                return Ok(ItemAnswer::Unpaid { cost });
            }
            if this.silent {
                std::future::pending::<()>().await;
            }
            if !this.full {
                this.kept.lock().insert(key);
            }
            let bytes = bytes_of(request.wanted);
            let charged = if cached { 0 } else { request.wanted.len };
            Ok(ItemAnswer::Bytes {
                blocks: request.hashed(&bytes),
                cached,
                charged,
                admitted: if this.full { 0 } else { charged },
            })
        }
        .boxed()
    }
}

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

fn byte(at: u64) -> u8 {
    u8::try_from(at % 251).unwrap()
}

fn bytes_of(extent: Extent) -> Bytes {
    (extent.start..extent.end()).map(byte).collect()
}

fn file(name: &str, size: u64) -> FileRef {
    FileRef::new(path(name), Version::from_data([7; 16]), size, None)
}

/// Dataset `d` at `/d`, homes of ranks 1 to 3, and readers of no job that may read `rate` bytes per
/// second on this node, of rank 0.
fn decision(rate: Option<u64>) -> Arc<Decision> {
    let homes = (1..4).map(|rank| HomeNode {
        rank,
        name: format!("n{rank}"),
        capacity: 1 << 30,
    });
    let node = JobNode {
        rank: 0,
        remote_io: rate.unwrap_or(0),
    };
    Arc::new(Decision {
        serial: Serial {
            term: 1,
            count: rate.unwrap_or(0),
        },
        remote_io_total: rate,
        homes: homes.collect(),
        datasets: vec![DatasetDecision {
            id: 9,
            budget: 1 << 30,
            ..DatasetDecision::from(DatasetSpec::new("d", path("/d")))
        }],
        jobs: vec![JobDecision {
            gpus: 0,
            irregular: true,
            remote_io: rate,
            nodes: vec![node],
            ..JobDecision::observed(UNATTRIBUTED)
        }],
        ..Decision::default()
    })
}

fn reader(homes: &Arc<Fake>, rate: Option<u64>) -> DatasetReader {
    let proc = Proc::at(Path::new("/nowhere"));
    let activities = Arc::new(Activities::default());
    let reader = DatasetReader::new(
        Arc::new(Arc::clone(homes)),
        Arc::new(Readers::new(proc)),
        Arc::clone(&activities),
        REQUEST_TIMEOUT,
    );
    drop(activities.of(None, "d", Instant::now()));
    reader.apply(&decision(rate), 0);
    reader
}

fn open(reader: &DatasetReader, file: &FileRef) -> OpenDatasetFile {
    match reader.open(0, &file.path, file).unwrap() {
        Opening::Ready(open) => open,
        Opening::Later(_) => panic!("a reader of no job is known"),
    }
}

/// Returns the report on readers without a job.
fn counted(reader: &DatasetReader) -> JobReport {
    let proc = Proc::at(Path::new("/nowhere"));
    let reports = reader.0.activities.reports(&proc, Instant::now());
    reports.into_iter().next().unwrap()
}

async fn read_through(reader: &DatasetReader, file: &FileRef, piece: u32) {
    let (open, size) = (open(reader, file), file.size);
    let mut at = 0;
    while at < size {
        let cut = match open.try_read(at, piece) {
            Some(cut) => cut,
            None => open.read(file, at, piece).await.unwrap(),
        };
        let bytes = cut.bytes;
        assert_eq!(bytes.len() as u64, u64::from(piece).min(size - at));
        let right = (at..).zip(&bytes).all(|(at, got)| *got == byte(at));
        assert!(right, "at {at}");
        at += bytes.len() as u64;
    }
}

#[tokio::test]
async fn an_item_is_requested_once_however_it_is_read() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, None);
    let small = file("/d/a", 300_000);
    read_through(&reader, &small, 4096).await;
    assert_eq!(homes.asked.lock().len(), 1);
    let large = file("/d/b", 2 * STRIPE_BYTES + 5);
    read_through(&reader, &large, 100_000).await;
    let stripes: Vec<_> = {
        let asked = homes.asked.lock();
        asked[1..]
            .iter()
            .map(|(_, r)| (r.item.start / STRIPE_BYTES, r.wanted.len))
            .collect()
    };
    assert_eq!(stripes, [(0, STRIPE_BYTES), (1, STRIPE_BYTES), (2, 5)]);
    let counts = counted(&reader);
    assert_eq!((counts.items, counts.bytes), (4, 300_000 + large.size));
    assert_eq!((counts.hit_bytes, counts.charged_bytes), (0, counts.bytes));
    // A second reader of the same file hits at its home.
    read_through(&reader, &small, 65_536).await;
    let counted = counted(&reader);
    assert_eq!(counted.total_bytes, counted.charged_bytes + 300_000);
}

/// A reader of dataset `d`, whose file `shard` of 3,000 bytes has two entries.
fn with_manifest(homes: &Arc<Fake>) -> (DatasetReader, Arc<Decision>) {
    let reader = reader(homes, None);
    let mut decision = (*decision(None)).clone();
    decision.serial.count += 1;
    decision.datasets[0].manifest = Some(path("/d.manifest"));
    let decision = Arc::new(decision);
    reader.apply(&decision, 0);
    let entry = |offset, len| NamedBytes {
        path: "shard".into(),
        size: 3000,
        offset,
        bytes: (offset..offset + len).map(byte).collect(),
    };
    let catalog = Catalog::new(manifest(&[entry(600, 400), entry(100, 500)]));
    reader.set_catalog(9, &Arc::new(catalog));
    (reader, decision)
}

#[tokio::test]
async fn entries_of_a_manifest_are_requested_from_the_homes_of_their_hashes() {
    let homes = Arc::new(Fake::default());
    let (reader, decision) = with_manifest(&homes);
    read_through(&reader, &file("/d/shard", 3000), 4096).await;
    let asked = std::mem::take(&mut *homes.asked.lock());
    let extents: Vec<_> = asked
        .iter()
        .map(|(_, r)| (r.item.start, r.item.len))
        .collect();
    assert_eq!(extents, [(0, 100), (100, 500), (600, 400), (1000, 2000)]);
    assert!(
        asked
            .iter()
            .all(|(_, request)| request.wanted == request.item)
    );
    let table = SlotTable::new(&decision.homes);
    for (rank, request) in &asked {
        let slot = match &request.content {
            Some(content) => slot_of_content(content),
            None => slot_of(&request.path, 0),
        };
        let home = table.home_of_slot(slot).unwrap();
        assert_eq!(*rank, Some(decision.homes[home].rank));
    }
    let known: Vec<bool> = asked.iter().map(|(_, r)| r.content.is_some()).collect();
    assert_eq!(known, [false, true, true, false]);
    assert_eq!(counted(&reader).items, 4);
    // A dataset that has no manifest any more has stripes again.
    let mut plain = (*decision).clone();
    plain.serial.count += 1;
    plain.datasets[0].manifest = None;
    reader.apply(&Arc::new(plain), 0);
    read_through(&reader, &file("/d/shard", 3000), 4096).await;
    let asked = homes.asked.lock();
    assert_eq!((asked.len(), asked[0].1.item.len), (1, 3000));
}

/// Storage has other bytes than the manifest says: they are read without their hash, and counted.
#[tokio::test]
async fn a_file_that_is_newer_than_the_manifest_is_read_as_it_is() {
    let homes = Arc::new(Fake {
        outdated: true,
        ..Fake::default()
    });
    let (reader, _decision) = with_manifest(&homes);
    read_through(&reader, &file("/d/shard", 3000), 4096).await;
    assert_eq!(reader.0.counters.outdated.get(), 2);
    let asked = homes.asked.lock();
    let known: Vec<bool> = asked.iter().map(|(_, r)| r.content.is_some()).collect();
    assert_eq!(known, [false, true, false, true, false, false]);
}

/// Engines open a file for its footer, and again for its data.
#[tokio::test]
async fn a_small_item_that_its_home_does_not_keep_is_read_once_for_opens_in_a_row() {
    let homes = Arc::new(Fake {
        full: true,
        ..Fake::default()
    });
    let reader = reader(&homes, None);
    let asked = || std::mem::take(&mut *homes.asked.lock()).len();
    let small = file("/d/a", 300_000);
    open(&reader, &small)
        .read(&small, 299_000, 1000)
        .await
        .unwrap();
    read_through(&reader, &small, 65_536).await;
    assert_eq!(asked(), 1);
    assert_eq!(counted(&reader).charged_bytes, 300_000);
    // All of it was returned, so a second reader of all of it is one of its home.
    read_through(&reader, &small, 65_536).await;
    read_through(&reader, &small, 65_536).await;
    assert_eq!(asked(), 2);
    // Another version is another item, and a large file is read in the requested ranges.
    let begin = async |file: &FileRef| {
        open(&reader, file).read(file, 0, 1000).await.unwrap();
    };
    let version = small.version.with_change([1; 8]);
    let changed = FileRef::new(small.path.clone(), version, small.size, None);
    for file in [&small, &small, &changed, &changed] {
        begin(file).await;
    }
    assert_eq!(asked(), 2);
    let large = file("/d/b", STRIPE_BYTES);
    begin(&large).await;
    begin(&large).await;
    assert_eq!(asked(), 2);
    reader.clear();
    begin(&small).await;
    assert_eq!(asked(), 1);
}

/// A home that keeps the item is asked again, so that it knows the recency.
#[tokio::test]
async fn a_small_item_that_its_home_keeps_is_requested_for_each_open() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, None);
    let small = file("/d/a", 300_000);
    for opens in 1..3 {
        open(&reader, &small).read(&small, 0, 1000).await.unwrap();
        assert_eq!(homes.asked.lock().len(), opens);
    }
}

#[tokio::test]
async fn random_reads_fetch_only_their_range() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, None);
    let large = file("/d/b", 3 * STRIPE_BYTES);
    let opened = open(&reader, &large);
    for at in [STRIPE_BYTES + 5000, 70_001, 2 * STRIPE_BYTES - 10] {
        let cut = opened.read(&large, at, 20).await.unwrap();
        let bytes = cut.bytes;
        assert!((at..).zip(&bytes).all(|(at, got)| *got == byte(at)));
        assert_eq!(bytes.len(), 20);
    }
    let lens = || {
        let asked = homes.asked.lock();
        let asked = asked.iter().map(|(_, request)| request.wanted.len);
        asked.collect::<Vec<_>>()
    };
    // The last one spans two stripes.
    assert_eq!(lens(), [4096; 4]);
}

/// A shard of samples is read in short sequences from anywhere, and its header from the beginning: none of them has a whole
/// item fetched. Long sequences do, in whatever order the kernel's requests are handled.
#[tokio::test]
async fn only_long_sequences_have_whole_items_fetched() {
    const KIB: u64 = 1024;
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, None);
    let large = file("/d/b", 8 * STRIPE_BYTES);
    let lens = async |reads: &[(u64, u64)]| {
        let opened = open(&reader, &large);
        homes.asked.lock().clear();
        for (offset, len) in reads {
            let len = u32::try_from(*len).unwrap();
            opened.read(&large, *offset, len).await.unwrap();
        }
        let asked = homes.asked.lock();
        let asked = asked.iter().map(|(_, request)| request.wanted.len);
        asked.collect::<Vec<_>>()
    };
    let at = 5 * STRIPE_BYTES + 100 * KIB;
    let sample = [(0, 16 * KIB), (at, 60 * KIB), (at + 60 * KIB, 48 * KIB)];
    assert_eq!(lens(&sample).await, [16 * KIB, 60 * KIB, 48 * KIB]);
    // From the beginning, by a long read.
    let whole = [(0, 64 * KIB), (64 * KIB, 64 * KIB)];
    assert_eq!(lens(&whole).await, [STRIPE_BYTES]);
    // From anywhere.
    let quarter = 256 * KIB;
    for order in [[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 4, 5], [3, 2, 1, 0, 5, 4]] {
        let reads = order.map(|place| (at + place * quarter, quarter));
        let due = [quarter, quarter, quarter, quarter, STRIPE_BYTES];
        assert_eq!(lens(&reads).await, due, "{order:?}");
    }
}

#[tokio::test]
async fn files_outside_of_datasets_are_not_opened() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, None);
    let other = file("/dd/a", 10);
    assert!(reader.open(0, &other.path, &other).is_none());
    assert_eq!(reader.dataset_of(&path("/d/x/y")).as_deref(), Some("d"));
    assert_eq!(reader.dataset_of(&path("/")), None);
}

#[tokio::test]
async fn misses_wait_for_tokens_and_hits_do_not() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, Some(1_000_000));
    let begun = Instant::now();
    for number in 0..20 {
        let file = file(&format!("/d/{number}"), 50_000);
        open(&reader, &file).read(&file, 0, 50_000).await.unwrap();
    }
    let took = begun.elapsed();
    // A megabyte at 1 MB/s, minus one item and the burst.
    assert!(took > Duration::from_millis(800), "{took:?}");
    let unpaid = reader.0.counters.unpaid.get();
    assert!(unpaid > 0);
    for number in 0..20 {
        let file = file(&format!("/d/{number}"), 50_000);
        open(&reader, &file).read(&file, 0, 50_000).await.unwrap();
    }
    assert_eq!(
        reader.0.counters.unpaid.get(),
        unpaid,
        "a hit asks for no tokens"
    );
    assert_eq!(counted(&reader).charged_bytes, 1_000_000);
}

/// The time limit of a request applies to its homes only.
#[tokio::test(start_paused = true)]
async fn waiting_for_tokens_does_not_count_against_the_time_limit() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, Some(1000));
    let mut longest = Duration::ZERO;
    for name in ["/d/b", "/d/c", "/d/d"] {
        let (file, begun) = (file(name, 100_000), tokio::time::Instant::now());
        open(&reader, &file).read(&file, 0, 1000).await.unwrap();
        longest = longest.max(begun.elapsed());
    }
    assert!(longest > REQUEST_TIMEOUT, "{longest:?}");

    let homes = Arc::new(Fake {
        silent: true,
        ..Fake::default()
    });
    let (reader, file) = (self::reader(&homes, None), file("/d/a", 1000));
    let begun = tokio::time::Instant::now();
    let failure = open(&reader, &file).read(&file, 0, 1000).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Io, "{failure}");
    assert_eq!(begun.elapsed().as_secs(), REQUEST_TIMEOUT.as_secs());
}

#[tokio::test]
async fn unreachable_homes_are_skipped() {
    let homes = Arc::new(Fake::default());
    homes.gone.lock().extend([1, 2]);
    let reader = reader(&homes, None);
    for number in 0..30 {
        let file = file(&format!("/d/{number}"), 1000);
        read_through(&reader, &file, 1000).await;
    }
    let elsewhere = reader.0.counters.elsewhere.get();
    assert!(elsewhere > 0);
    homes.gone.lock().insert(3);
    let last = file("/d/last", 1000);
    read_through(&reader, &last, 1000).await;
    let asked = homes.asked.lock();
    let ranks: Vec<_> = asked.iter().rev().take(4).map(|(rank, _)| *rank).collect();
    assert_eq!(ranks[0], None, "this node itself, at last");
    assert_eq!(ranks[1..].iter().flatten().count(), 3);
}

#[tokio::test]
async fn a_home_that_always_wants_more_is_refused() {
    let homes = Arc::new(Fake {
        greedy: true,
        ..Fake::default()
    });
    let reader = reader(&homes, None);
    let file = file("/d/a", 1000);
    let failure = open(&reader, &file).read(&file, 0, 1000).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Corrupt);
}

#[tokio::test]
async fn page_cache_hits_count_as_reads() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, None);
    let large = file("/d/a", STRIPE_BYTES + 1);
    drop(open(&reader, &large));
    let counts = counted(&reader);
    assert_eq!((counts.items, counts.bytes), (2, large.size));
    assert_eq!(counts.hit_bytes, large.size);
    assert_eq!(homes.asked.lock().len(), 0);
}

#[tokio::test]
async fn a_dataset_read_without_a_job_is_counted() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, None);
    reader.unattributed(&path("/d/a"), 5);
    reader.unattributed(&path("/e/a"), 7);
    reader.apply(&decision(Some(1)), 0);
    reader.unattributed(&path("/d/a"), 1);
    assert_eq!(reader.0.counters.unattributed_bytes.get(), 6);
    assert!(!reader.0.view().warn_once(0), "it has been said");
}

/// A decision includes the owners of declared jobs.
#[test]
fn a_decision_contains_the_owners_of_declared_jobs() {
    let mut decided = Arc::unwrap_or_clone(decision(None));
    let mut job = decided.jobs[0].clone();
    job.name = "run:train".into();
    job.owner = Some(1000);
    decided.jobs.push(job);
    let wanted = HashMap::from([("run:train".parse().unwrap(), 1000)]);
    assert_eq!(owners(&decided), wanted);
}

/// A file whose status changed is read under its new version, and cached bytes of the old version are not
/// used for it. For a job it is the same item.
#[tokio::test]
async fn an_open_file_is_read_in_the_requested_version() {
    let homes = Arc::new(Fake::default());
    let reader = reader(&homes, None);
    let old = file("/d/a", 300_000);
    let version = old.version.with_change([1; 8]);
    let new = FileRef::new(path("/d/a"), version, 300_000, None);
    let open = open(&reader, &old);
    let before = open.read(&old, 0, 4096).await.unwrap();
    assert_eq!(open.version(), old.version);
    assert!(open.try_read(4096, 4096).is_some());
    let after = open.read(&new, 4096, 4096).await.unwrap();
    assert_eq!(before.parts, after.parts, "one block, all of it");
    let hash = open.hash(&new, 0, 300_000).await.unwrap();
    assert_eq!(before.parts.iter().next().unwrap().hash, hash);
    let asked = homes.asked.lock();
    let versions: Vec<_> = asked.iter().map(|(_, request)| request.version).collect();
    assert_eq!(versions, [old.version, new.version, new.version]);
    assert_eq!(place_hash(&old), place_hash(&new));
}

#[tokio::test]
async fn items_at_home_here_are_returned_at_once() {
    let homes = Arc::new(Fake {
        here: true,
        ..Fake::default()
    });
    let reader = reader(&homes, None);
    let (small, large) = (file("/d/a", 300_000), file("/d/b", 3 * STRIPE_BYTES));
    for file in [&small, &large] {
        assert!(open(&reader, file).try_read(0, 1 << 20).is_none());
        read_through(&reader, file, 1 << 20).await;
    }
    let (asked, before) = (homes.asked.lock().len(), counted(&reader));
    assert_eq!(homes.asked_at_once.lock().len(), 0);
    // By one READ, and by several of which the home gets one request.
    for (times, piece) in [(1, 300_000), (2, 4096)] {
        read_through(&reader, &small, piece).await;
        assert_eq!(homes.asked_at_once.lock().len(), times);
    }
    read_through(&reader, &large, 1 << 20).await;
    assert_eq!(homes.asked_at_once.lock().len(), 2 + 3);
    assert_eq!(homes.asked.lock().len(), asked);
    let after = counted(&reader);
    let read = 2 * small.size + large.size;
    assert_eq!(after.total_bytes - before.total_bytes, read);
    assert_eq!(after.charged_bytes, before.charged_bytes);
    // A sample of a shard is no reason to hold a stripe.
    assert!(open(&reader, &large).try_read(1 << 20, 8192).is_none());
    assert!(open(&reader, &small).try_read(small.size, 4096).is_none());
}

/// Homes keep nothing of it, and a file with the same place would hide that storage has changed.
#[tokio::test]
async fn an_unsettled_version_is_never_returned_at_once() {
    let homes = Arc::new(Fake {
        here: true,
        ..Fake::default()
    });
    let reader = reader(&homes, None);
    let small = file("/d/a", 300_000);
    read_through(&reader, &small, 300_000).await;
    let version = small.version.standing_as(Standing::Unsettled(1));
    let unsettled = FileRef::new(small.path.clone(), version, 300_000, None);
    assert!(open(&reader, &small).try_read(0, 300_000).is_some());
    assert!(open(&reader, &unsettled).try_read(0, 300_000).is_none());
}
