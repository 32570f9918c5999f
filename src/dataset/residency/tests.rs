//! Three homes, and the bits that they make together.

use super::*;
use crate::dataset::home::{Home, HomeOptions, HomeStorage};
use crate::model::{DatasetSpec, Serial};
use crate::testing::{NamedBytes, manifest, noise, path, unasked};
use bytes::Bytes;
use copperfs_overlay::Failure;
use copperfs_overlay::{
    BlockPart, ContentHash, Extent, FailureKind, Files, HeldAnswer, Insertion, ItemAnswer,
    ItemRequest, RangeAnswer, RangeRequest, ReadRequest, ReadStream, Version,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const MIB: u64 = 1 << 20;

/// Storage in which every file `N` has the bytes `noise(N)`.
struct Noise;

impl Files for Noise {
    unasked!(list, stat, xattrs, usage);

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        let name = request.path.to_string();
        let bytes = Bytes::from(noise(name.trim_start_matches("/d/"), request.size));
        let block = usize::try_from(MIB).unwrap();
        let first = usize::try_from(request.first_block).unwrap();
        let count = usize::try_from(request.block_count).unwrap();
        let blocks = bytes.chunks(block).skip(first).take(count);
        let parts = blocks.flat_map(|block| {
            let hash = ContentHash(*blake3::hash(block).as_bytes());
            [
                BlockPart::Bytes(bytes.slice_ref(block)),
                BlockPart::End(hash),
            ]
            .map(Ok)
        });
        let parts: Vec<_> = parts.collect();
        async move { Ok(stream::iter(parts).boxed()) }.boxed()
    }

    fn read_range(
        &self,
        _request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        panic!("all items are whole blocks of their files")
    }
}

pub(in crate::dataset) struct Cluster {
    pub(in crate::dataset) homes: Vec<Home>,
    /// Ranks that do not answer.
    pub(in crate::dataset) gone: Mutex<Vec<u32>>,
    /// How long the home of this rank takes for an answer.
    slow: Mutex<HashMap<u32, Duration>>,
    asked: AtomicUsize,
}

impl Cluster {
    /// Returns the home at `rank`, unless it is gone.
    fn home(&self, rank: u32) -> Result<Home, Failure> {
        match self.gone.lock().contains(&rank) {
            true => Err(Failure::new(FailureKind::Unavailable, "gone")),
            false => Ok(self.homes[rank as usize].clone()),
        }
    }
}

impl HomeClient for Cluster {
    fn content(
        &self,
        rank: u32,
        hash: ContentHash,
    ) -> BoxFuture<'static, Result<Option<Bytes>, Failure>> {
        let home = self.home(rank);
        async move { Ok(home?.content(hash).await) }.boxed()
    }

    fn insert(
        &self,
        rank: u32,
        hash: ContentHash,
        bytes: Bytes,
    ) -> BoxFuture<'static, Result<Insertion, Failure>> {
        let home = self.home(rank);
        async move { Ok(home?.insert(hash, bytes).await) }.boxed()
    }

    fn ask(
        &self,
        rank: Option<u32>,
        request: ItemRequest,
    ) -> BoxFuture<'static, Result<ItemAnswer, Failure>> {
        let home = self.homes[rank.unwrap() as usize].clone();
        async move { home.item(request).await }.boxed()
    }

    fn try_ask(&self, rank: u32, request: &ItemRequest) -> Option<Vec<RangeAnswer>> {
        self.homes[rank as usize].try_item(request)
    }

    fn held(
        &self,
        rank: u32,
        request: HeldRequest,
    ) -> BoxFuture<'static, Result<HeldAnswer, Failure>> {
        self.asked.fetch_add(1, SeqCst);
        let (home, delay) = (self.home(rank), self.slow.lock().get(&rank).copied());
        async move {
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
            home?.held(request).await
        }
        .boxed()
    }
}

const ENTRIES: u32 = 43;

/// File `N` of the dataset; every eleventh has two parts.
fn size(number: u32) -> u64 {
    if number.is_multiple_of(11) {
        5 * MIB
    } else {
        1000
    }
}

pub(in crate::dataset) fn decision(homes: u32) -> Decision {
    let homes = (0..homes).map(|rank| HomeNode {
        rank,
        name: format!("n{rank}"),
        capacity: 1 << 30,
    });
    Decision {
        serial: Serial { term: 1, count: 1 },
        homes: homes.collect(),
        datasets: vec![DatasetDecision {
            manifest: Some(path("/d.manifest")),
            budget: 1 << 30,
            size: 1 << 30,
            ..DatasetDecision::from(DatasetSpec::new("d", path("/d")))
        }],
        ..Decision::default()
    }
}

pub(in crate::dataset) fn catalog() -> Arc<Catalog> {
    let entries = (0..ENTRIES).map(|number| NamedBytes {
        path: number.to_string(),
        size: size(number),
        offset: 0,
        bytes: noise(number.to_string(), size(number)),
    });
    Arc::new(Catalog::new(manifest(&entries.collect::<Vec<_>>())))
}

pub(in crate::dataset) fn cluster(decision: &Decision, catalog: &Arc<Catalog>) -> Arc<Cluster> {
    let homes = decision.homes.iter().map(|node| {
        let options = HomeOptions {
            capacity: 1 << 30,
            storage: HomeStorage::Memory,
            seed: 1,
            in_flight_bytes_max: 16 * MIB,
        };
        let home = Home::new(options, Arc::new(Noise), None);
        home.apply(decision, node.rank, &node.name);
        home.set_catalog(decision.datasets[0].id, catalog);
        home
    });
    Arc::new(Cluster {
        homes: homes.collect(),
        gone: Mutex::default(),
        slow: Mutex::default(),
        asked: AtomicUsize::new(0),
    })
}

/// Reads the items of entry `number` at their homes, but for the last `less` ones.
pub(in crate::dataset) async fn load(
    cluster: &Cluster,
    decision: &Decision,
    catalog: &Catalog,
    number: u32,
    less: usize,
) {
    let table = SlotTable::new(&decision.homes);
    let (name, size) = (number.to_string(), size(number));
    let mut offset = 0;
    let mut pieces = Vec::new();
    while let Some(piece) = catalog.piece_at(name.as_bytes(), size, offset) {
        offset = piece.extent.end();
        pieces.push(piece);
    }
    for piece in &pieces[..pieces.len() - less] {
        let home = table.home_of_slot(piece.item().unwrap().slot()).unwrap();
        let Extent { start, len } = piece.extent;
        let request = ItemRequest {
            dataset: decision.datasets[0].id,
            path: path(&format!("/d/{name}")),
            version: Version::from_data([1; 16]),
            size,
            item: piece.extent,
            content: piece.content,
            wanted: Extent { start, len },
            job: 0,
            payment: u64::MAX,
            is_uncached: false,
        };
        let home = &cluster.homes[home];
        assert!(matches!(
            home.item(request.clone()).await,
            Ok(ItemAnswer::Bytes { .. })
        ));
        crate::waiting::until(crate::testing::SOON, "it is kept", || home.has(&request)).await;
    }
}

fn entries(resident: &Resident) -> Vec<u32> {
    let bit = |number: &u32| resident.bits[*number as usize / 8] >> (number % 8) & 1 == 1;
    assert_eq!(resident.bits.len(), ENTRIES.div_ceil(8) as usize);
    let all = u32::try_from(resident.bits.len() * 8).unwrap();
    (0..all).filter(bit).collect()
}

#[tokio::test(start_paused = true)]
async fn the_homes_tell_which_entries_are_resident() {
    let (decision, catalog) = (decision(3), catalog());
    let cluster = cluster(&decision, &catalog);
    let residency = Residency::new(Arc::clone(&cluster) as Arc<dyn HomeClient>);
    let dataset = &decision.datasets[0];
    let ask = || residency.of(&decision, dataset, &catalog);
    let nothing = ask().await;
    assert_eq!(entries(&nothing), [0_u32; 0]);
    for number in [0, 3, 4, 9, 40, 42] {
        load(&cluster, &decision, &catalog, number, 0).await;
    }
    // One part of two is not the entry.
    load(&cluster, &decision, &catalog, 11, 1).await;
    tokio::time::sleep(AGE_MAX).await;
    let some = ask().await;
    assert_eq!(entries(&some), [0, 3, 4, 9, 40, 42]);
    assert_ne!(some.state, nothing.state);
    // The answer is shared for a while.
    let asked = cluster.asked.load(SeqCst);
    assert_eq!(
        (ask().await, cluster.asked.load(SeqCst)),
        (some.clone(), asked)
    );
    tokio::time::sleep(AGE_MAX).await;
    assert_eq!(ask().await, some);
    assert!(cluster.asked.load(SeqCst) >= asked + 3);
    // The homes are left alone when no job asks.
    tokio::time::sleep(DEMAND_MAX * 2).await;
    let asked = cluster.asked.load(SeqCst);
    tokio::time::sleep(DEMAND_MAX).await;
    assert_eq!(cluster.asked.load(SeqCst), asked);
    // A request that is given up does not end the question.
    let _late = timeout(Duration::from_nanos(1), ask()).await;
    tokio::time::sleep(ASK_INTERVAL / 2).await;
    assert!(cluster.asked.load(SeqCst) > asked);
}

#[tokio::test(start_paused = true)]
async fn entries_of_a_lost_home_are_not_resident_until_it_is_back() {
    let (decision, catalog) = (decision(3), catalog());
    let cluster = cluster(&decision, &catalog);
    let residency = Residency::new(Arc::clone(&cluster) as Arc<dyn HomeClient>);
    let dataset = &decision.datasets[0];
    let ask = || residency.of(&decision, dataset, &catalog);
    for number in 0..ENTRIES {
        load(&cluster, &decision, &catalog, number, 0).await;
    }
    assert_eq!(entries(&ask().await).len(), ENTRIES as usize);
    cluster.gone.lock().push(1);
    tokio::time::sleep(AGE_MAX).await;
    let table = SlotTable::new(&decision.homes);
    let elsewhere = |number: &u32| {
        let mut items = catalog.pieces_of(*number as usize).map(|(item, _)| item);
        items.all(|item| table.home_of_slot(item.slot()) != Some(1))
    };
    let left: Vec<u32> = (0..ENTRIES).filter(elsewhere).collect();
    assert!(left.len() > 10 && left.len() < 40, "{left:?}");
    assert_eq!(entries(&ask().await), left);
    cluster.gone.lock().clear();
    tokio::time::sleep(AGE_MAX).await;
    assert_eq!(entries(&ask().await), left, "it is not asked for a second");
    tokio::time::sleep(REST).await;
    assert_eq!(entries(&ask().await).len(), ENTRIES as usize);
}

/// A question about millions of entries takes longer than an answer may be old.
#[tokio::test(start_paused = true)]
async fn homes_that_take_longer_than_an_answer_may_be_old_are_heard() {
    let (decision, catalog) = (decision(3), catalog());
    let cluster = cluster(&decision, &catalog);
    let residency = Residency::new(Arc::clone(&cluster) as Arc<dyn HomeClient>);
    let dataset = &decision.datasets[0];
    for rank in 0..3 {
        cluster.slow.lock().insert(rank, AGE_MAX * 2);
    }
    for number in [3, 7, 9] {
        load(&cluster, &decision, &catalog, number, 0).await;
        let asking = residency.of(&decision, dataset, &catalog);
        let told = timeout(Duration::from_secs(5), asking).await.unwrap();
        let loaded = entries(&told).into_iter().filter(|one| *one == number);
        assert_eq!(loaded.count(), 1, "{number}");
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn entries_of_a_silent_home_are_not_resident_within_its_timeout() {
    let (decision, catalog) = (decision(3), catalog());
    let cluster = cluster(&decision, &catalog);
    let residency = Residency::new(Arc::clone(&cluster) as Arc<dyn HomeClient>);
    let dataset = &decision.datasets[0];
    let ask = || residency.of(&decision, dataset, &catalog);
    for number in 0..ENTRIES {
        load(&cluster, &decision, &catalog, number, 0).await;
    }
    assert_eq!(entries(&ask().await).len(), ENTRIES as usize);
    cluster.slow.lock().insert(1, HOME_TIMEOUT * 100);
    tokio::time::sleep(AGE_MAX).await;
    let began = Instant::now();
    let left = entries(&ask().await).len();
    assert!(left > 10 && left < ENTRIES as usize, "{left}");
    assert!(
        began.elapsed() <= HOME_TIMEOUT + AGE_MAX,
        "{:?}",
        began.elapsed()
    );
}

/// A home that has another decision knows other items or homes. Its bits would be taken for other entries.
#[tokio::test]
async fn bits_of_another_layout_are_not_used() {
    let (before, catalog) = (decision(3), catalog());
    let cluster = cluster(&before, &catalog);
    let residency = Residency::new(Arc::clone(&cluster) as Arc<dyn HomeClient>);
    for number in 0..ENTRIES {
        load(&cluster, &before, &catalog, number, 0).await;
    }
    let after = decision(2);
    let dataset = &after.datasets[0];
    assert_eq!(
        entries(&residency.of(&after, dataset, &catalog).await),
        [0_u32; 0]
    );
}
