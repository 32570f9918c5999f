//! Whole epochs over several homes.

use super::*;
use crate::cache::{Cache, EvictionPolicy};
use std::sync::atomic::{AtomicBool, Ordering};

/// splitmix64, for permutations.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1);
            items.swap(last, usize::try_from(other).unwrap());
        }
    }
}

/// A dataset of small files, and the home of each.
struct Cluster {
    storage: Arc<Storage>,
    files: Vec<(String, usize, u64)>,
    ranks: Vec<u32>,
    homed: Vec<u64>,
}

impl Cluster {
    fn new(nodes: u32, files: u64) -> Self {
        let mut random = Random(1);
        let ranks: Vec<u32> = (0..nodes).collect();
        let homes: Vec<HomeNode> = ranks.iter().map(|rank| home_node(*rank)).collect();
        let homes = SlotTable::new(&homes);
        let mut homed = vec![0; ranks.len()];
        let files: Vec<(String, usize, u64)> = (0..files)
            .map(|number| {
                let name = format!("data/a/{number}");
                let home = homes.home_of_slot(slot_of(&path(&name), 0)).unwrap();
                let len = 1 + random.below(2 * KIB);
                homed[home] += len;
                (name, home, len)
            })
            .collect();
        let stored: Vec<(&str, u64)> = files.iter().map(|(name, _, len)| (&**name, *len)).collect();
        Self {
            storage: Storage::of(&stored),
            files,
            ranks,
            homed,
        }
    }

    fn size(&self) -> u64 {
        self.homed.iter().sum()
    }

    fn decision(&self, count: u64, budget: u64) -> Decision {
        let mut decision = decision(count, &self.ranks, &[("a", budget)]);
        decision.datasets[0].homed.clone_from(&self.homed);
        decision
    }

    fn homes(&self, budget: u64) -> Vec<Home> {
        let decision = self.decision(1, budget);
        let made = self.ranks.iter().map(|rank| {
            let home = Home::new(
                options(HomeStorage::Memory, RICH),
                self.storage.files(),
                None,
            );
            home.apply(&decision, *rank, &format!("nid{rank}"));
            home
        });
        made.collect()
    }
}

#[tokio::test]
async fn the_hit_ratio_of_an_epoch_is_budget_over_size() {
    let cluster = Cluster::new(4, 2_000);
    for percent in (10..=90).step_by(10).chain([100]) {
        let budget = (cluster.size() * percent).div_ceil(100);
        let homes = cluster.homes(budget);
        let lru: Vec<Cache<usize, ()>> = (0..4)
            .map(|home| {
                let share = budget * cluster.homed[home] / cluster.size();
                Cache::new(EvictionPolicy::Lru, share)
            })
            .collect();
        let mut random = Random(percent);
        let mut order: Vec<usize> = (0..cluster.files.len()).collect();
        for epoch in 0..4 {
            random.shuffle(&mut order);
            let (mut hit, mut lru_hit) = (0, 0);
            for at in &order {
                let (name, home, len) = &cluster.files[*at];
                let request = all_of(&cluster.storage, name, RICH);
                let given = give_here(&homes[*home], &cluster.storage, request).await;
                hit += if given.unwrap().cached { *len } else { 0 };
                if lru[*home].get(at).is_some() {
                    lru_hit += len;
                } else {
                    lru[*home].insert(*at, (), *len);
                }
            }
            let ratio =
                |hit: u64| f64::from(u32::try_from(hit * 10_000 / cluster.size()).unwrap()) / 100.0;
            println!(
                "c = {percent} %, epoch {epoch}: uniform {:.2} %, LRU {:.2} %",
                ratio(hit),
                ratio(lru_hit)
            );
            let due = if epoch == 0 { 0 } else { percent };
            let due = f64::from(u32::try_from(due).unwrap());
            assert!((ratio(hit) - due).abs() < 1.0);
            if due < 95.0 && epoch > 0 {
                assert!(lru_hit < hit, "LRU evicts the items that are needed next");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_that_halve_and_double_hold_while_six_jobs_read() {
    let cluster = Arc::new(Cluster::new(4, 600));
    let full = cluster.size();
    let homes = Arc::new(cluster.homes(full));
    let ended = Arc::new(AtomicBool::new(false));
    let jobs: Vec<_> = (0..6)
        .map(|job| {
            let (cluster, homes) = (Arc::clone(&cluster), Arc::clone(&homes));
            let ended = Arc::clone(&ended);
            tokio::spawn(async move {
                let mut random = Random(job);
                let mut order: Vec<usize> = (0..cluster.files.len()).collect();
                while !ended.load(Ordering::Relaxed) {
                    random.shuffle(&mut order);
                    for at in &order {
                        let (name, home, _) = &cluster.files[*at];
                        let request = all_of(&cluster.storage, name, RICH);
                        give_here(&homes[*home], &cluster.storage, request)
                            .await
                            .unwrap();
                        // Hits never wait, so yield to other tasks.
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    let held = || -> u64 {
        let reports = homes.iter().map(|home| home.report().remove(0));
        reports
            .map(|report| {
                assert!(report.cached <= report.share);
                report.cached
            })
            .sum()
    };
    let item = 2 * KIB;
    until(SOON, "the cache fills", || held() == full).await;
    for count in 0..20 {
        let budget = if count % 2 == 0 { full / 2 } else { full };
        let decision = cluster.decision(count + 2, budget);
        for (rank, home) in (0..).zip(homes.iter()) {
            home.apply(&decision, rank, &format!("nid{rank}"));
        }
        // At once, and until it is full again.
        assert!(held() <= budget);
        until(SOON, "it fills up again", || {
            let held = held();
            assert!(held <= budget);
            held + 4 * item > budget
        })
        .await;
    }
    ended.store(true, Ordering::Relaxed);
    for job in jobs {
        job.await.unwrap();
    }
}
