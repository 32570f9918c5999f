//! This node and its cluster, as operators see them: counters, sums, clearing everywhere.

use super::data::DataFiles;
use super::datasets::Datasets;
use super::sweeps::{Sweeps, Wanted};
use crate::cache::CacheStats;
use crate::config::Crossings;
use crate::dataset::reader::ReaderStats;
use crate::model::ShareReport;
use crate::namespace::{InodeStats, InodeTable};
use crate::origin::Origins;
use crate::read::ReadPath;
use crate::report::{Children, Report, Standing};
use crate::store::{Store, StoreStats};
use bytes::Bytes;
use copperfs_fuse as fuse;
use copperfs_overlay::{Failure, FailureKind, ItemPath, LinkReport, Overlay, Roster};
use fuse::ioctl::{
    NO_PARENT, NO_RANK, NodeName, ROLE_INNER, ROLE_LEAF, ROLE_ROOT, ROLE_SINGLE, StatsBody,
};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Who a node is.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) started: Instant,
    pub(super) control_socket: PathBuf,
    /// The paths of the origins in the namespace.
    pub(super) prefixes: Vec<ItemPath>,
    /// How many edges of the tree cross switches, if that is known.
    pub(super) crossings: Option<Crossings>,
}

/// Where a node sits, as its report says it.
struct Place {
    name: String,
    rank: u64,
    role: u64,
    parent: u64,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            name: String::new(),
            rank: NO_RANK,
            role: ROLE_SINGLE,
            parent: NO_PARENT,
        }
    }
}

impl Place {
    fn of(roster: &Roster) -> Self {
        let rank = roster.rank();
        let forest = roster.forest();
        let role = match rank {
            Some(_) if roster.members().len() == 1 => ROLE_SINGLE,
            Some(rank) if forest.is_root(rank) => ROLE_ROOT,
            Some(rank) if forest.is_inner(rank) => ROLE_INNER,
            _ => ROLE_LEAF,
        };
        let parent = roster.ancestors(0).first().copied();
        Self {
            name: roster.name().to_owned(),
            rank: rank.map_or(NO_RANK, |rank| rank as u64),
            role,
            parent: parent.map_or(NO_PARENT, |rank| rank as u64),
        }
    }
}

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Cluster(Arc<Inner>, Arc<Sweeps<StatsBody>>);

#[derive(Debug)]
struct Inner {
    identity: Identity,
    read: ReadPath,
    /// On the root, and where big files are read from storage directly.
    origins: Option<Arc<Origins>>,
    store: Option<Store>,
    mount: OnceLock<(Arc<fuse::Counters>, Arc<InodeTable>)>,
    data_mount: OnceLock<(Arc<fuse::Counters>, Arc<InodeTable>, Arc<DataFiles>)>,
    datasets: OnceLock<Datasets>,
    overlay: OnceLock<Arc<Overlay>>,
}

/// The reports of a cluster.
pub(crate) struct Reports {
    /// One per node that answered, in rank order.
    pub(crate) nodes: Vec<Report>,
    /// Names of those that did not.
    pub(crate) missing: Vec<String>,
    /// The list that they were asked by; `None` while the node is starting.
    pub(crate) list: Option<MemberList>,
}

/// What every node knows of the cluster: enough to say where each belongs.
#[derive(Debug, Serialize)]
pub(crate) struct MemberList {
    /// Most children of a node in one tree.
    arity: usize,
    /// The rank of each tree's root.
    roots: Vec<usize>,
    /// All names, in rank order.
    names: Vec<String>,
    /// How many edges of the trees cross switches, if that is known.
    crossings: Option<Crossings>,
}

impl MemberList {
    fn of(roster: &Roster, crossings: Option<Crossings>) -> Self {
        let members = roster.members().iter();
        Self {
            crossings,
            arity: roster.forest().arity(),
            roots: roster.forest().roots().to_vec(),
            names: members.map(|member| member.name.clone()).collect(),
        }
    }
}

impl Cluster {
    pub(super) fn new(
        identity: Identity,
        read: ReadPath,
        origins: Option<Arc<Origins>>,
        store: Option<Store>,
    ) -> Self {
        let inner = Arc::new(Inner {
            identity,
            read,
            origins,
            store,
            mount: OnceLock::new(),
            data_mount: OnceLock::new(),
            datasets: OnceLock::new(),
            overlay: OnceLock::new(),
        });
        Self(inner, Arc::new(Sweeps::new()))
    }

    /// Counts the data mount's requests too, from now on.
    pub(super) fn data_mounted(
        &self,
        counters: Arc<fuse::Counters>,
        inodes: Arc<InodeTable>,
        files: Arc<DataFiles>,
    ) {
        drop(self.0.data_mount.set((counters, inodes, files)));
    }

    /// Counts the mount's requests too, from now on.
    pub(super) fn mounted(&self, counters: Arc<fuse::Counters>, inodes: Arc<InodeTable>) {
        drop(self.0.mount.set((counters, inodes)));
    }

    /// Keeps and reads datasets from now on.
    pub(super) fn keeps(&self, datasets: Datasets) {
        drop(self.0.datasets.set(datasets));
    }

    /// Reaches the other nodes from now on.
    pub(super) fn joined(&self, overlay: Arc<Overlay>) {
        drop(self.0.overlay.set(overlay));
    }

    pub(super) fn control_socket(&self) -> Bytes {
        Bytes::copy_from_slice(self.0.identity.control_socket.as_os_str().as_bytes())
    }

    /// This node's counters.
    pub(super) fn node_stats(&self) -> StatsBody {
        let Inner {
            identity,
            read,
            origins,
            store,
            datasets,
            overlay,
            ..
        } = &*self.0;
        let stats = read.stats();
        let links = overlay
            .get()
            .map(|overlay| overlay.counters())
            .unwrap_or_default();
        let origin = origins
            .as_ref()
            .map(|origins| origins.counters())
            .unwrap_or_default();
        let place = overlay.get().map(|overlay| Place::of(overlay.roster()));
        let place = place.unwrap_or_default();
        let holds = overlay.get().map(|overlay| overlay.upstream().links());
        let moves = |count: fn(&LinkReport) -> u64| holds.iter().flatten().map(count).sum();
        let mut body = StatsBody {
            node: NodeName::new(&place.name),
            pid: u64::from(std::process::id()),
            rank: place.rank,
            role: place.role,
            parent: place.parent,
            nodes: 1,
            uptime_s: identity.started.elapsed().as_secs(),
            rss_bytes: resident_bytes().unwrap_or(0),
            coalesced: stats.coalesced,
            upstream_requests: links.upstream_requests,
            upstream_bytes_received: links.upstream_bytes_received,
            downstream_requests: links.downstream_requests,
            downstream_bytes_sent: links.downstream_bytes_sent,
            origin_opens: origin.opens,
            origin_bytes_read: origin.bytes_read,
            origin_listings: origin.listings,
            origin_stats: origin.stats,
            origin_errors: origin.errors,
            origin_throttled: origin.throttled,
            origin_concurrency: origin.concurrency,
            origin_hanging: origin.hanging,
            verify_blocks: links.blocks_verified,
            verify_failures: links.wrong_blocks,
            healing_failovers: moves(|link| link.failovers),
            healing_returns: moves(|link| link.returns),
            healing_replays: links.replays,
            healing_wrong_blocks: links.wrong_blocks,
            bundle_requests: stats.bundles.requests,
            bundle_files: stats.bundles.files,
            bundle_useful_bytes: stats.bundles.useful_bytes,
            bundle_wasted_bytes: stats.bundles.wasted_bytes,
            ..StatsBody::default()
        };
        fill_caches(&mut body, &stats.data, &stats.attributes, &stats.listings);
        if let Some(store) = store {
            fill_store(&mut body, &store.stats());
        }
        if let Some(datasets) = datasets.get() {
            fill_datasets(&mut body, &datasets.home.report(), &datasets.reader.stats());
        }
        self.fill_mounts(&mut body);
        body
    }

    fn fill_mounts(&self, body: &mut StatsBody) {
        if let Some((counters, inodes)) = self.0.mount.get() {
            counters.fill(body);
            add_inodes(body, inodes.stats());
        }
        if let Some((counters, inodes, files)) = self.0.data_mount.get() {
            files.fill(counters, body);
            add_inodes(body, inodes.stats());
        }
    }

    /// This node's counters, and where it stands.
    fn own_report(&self) -> Report {
        let report = Report::from(self.node_stats());
        match self.0.overlay.get() {
            Some(overlay) => {
                let hanging = self
                    .0
                    .origins
                    .as_ref()
                    .and_then(|origins| origins.hanging());
                let hanging = hanging.map(Into::into);
                let standing = standing(overlay);
                report.with_standing(&Standing {
                    hanging,
                    ..standing
                })
            }
            None => report,
        }
    }

    /// This node's report, as it travels.
    pub(super) fn report(&self) -> Bytes {
        let report = self.own_report().into_json();
        // A struct of numbers and names always has a JSON form.
        serde_json::to_vec(&report)
            .map(Bytes::from)
            .unwrap_or_default()
    }

    /// The reports of all nodes. Ends within the request time-out.
    pub(crate) async fn reports(&self) -> Reports {
        let Some(overlay) = self.0.overlay.get() else {
            return Reports {
                nodes: vec![self.own_report()],
                missing: Vec::new(),
                list: None,
            };
        };
        let answers = overlay.cluster_reports().await;
        let parsed = answers.reports.iter().filter_map(|report| {
            let report = serde_json::from_slice(report)
                .ok()
                .and_then(|json| Report::from_json(json).ok());
            if report.is_none() {
                tracing::warn!("a node's report cannot be read");
            }
            report
        });
        Reports {
            nodes: parsed.collect(),
            missing: answers.missing,
            list: Some(MemberList::of(overlay.roster(), self.0.identity.crossings)),
        }
    }

    /// The counters of all nodes, summed.
    pub(super) async fn sum(&self, wanted: Wanted) -> StatsBody {
        self.1.get(wanted, self.sweep()).await
    }

    async fn sweep(&self) -> StatsBody {
        let mut sum = StatsBody::default();
        for report in self.reports().await.nodes {
            sum.add(&report.to_stats());
        }
        sum.parent = NO_PARENT;
        sum
    }

    /// Whether `path` is below an origin, or an origin is below `path`.
    pub(super) fn serves(&self, path: &ItemPath) -> bool {
        let mut prefixes = self.0.identity.prefixes.iter();
        prefixes.any(|prefix| path.is_within(prefix) || prefix.is_within(path))
    }

    /// Drops the cached state of `path` and below on every node, the root first. Returns whether any node
    /// had cached something.
    ///
    /// # Errors
    /// `Unavailable`, naming the nodes that could not be told.
    pub(super) async fn clear(&self, path: ItemPath) -> Result<bool, Failure> {
        let Some(overlay) = self.0.overlay.get() else {
            return Err(Failure::new(
                FailureKind::Unavailable,
                "the node is still starting",
            ));
        };
        let outcome = overlay.clear_cluster(path).await;
        if outcome.missing.is_empty() && outcome.failed.is_empty() {
            return Ok(outcome.effective > 0);
        }
        let failed = outcome
            .failed
            .into_iter()
            .map(|(node, failure)| format!("{node} ({failure})"));
        let silent = outcome
            .missing
            .into_iter()
            .map(|node| format!("{node} (no answer)"));
        let others: Vec<String> = failed.chain(silent).collect();
        let detail = format!(
            "cleared on {} nodes, not on {}",
            outcome.cleared,
            others.join(", ")
        );
        Err(Failure::new(FailureKind::Unavailable, detail))
    }
}

fn standing(overlay: &Overlay) -> Standing {
    let roster = overlay.roster();
    let trees = 0..roster.forest().roots().len();
    let links = overlay.upstream().links().into_iter();
    Standing {
        guest: roster.rank().is_none(),
        links: links.map(Into::into).collect(),
        children: trees
            .map(|tree| Children {
                tree,
                connected: overlay.children(tree).len(),
            })
            .collect(),
        hanging: None,
    }
}

fn add_inodes(body: &mut StatsBody, inodes: InodeStats) {
    body.inodes_entries += inodes.entries;
    body.inodes_bytes += inodes.bytes;
    body.inodes_pruned += inodes.pruned;
}

fn fill_store(body: &mut StatsBody, store: &StoreStats) {
    body.disk_entries = store.entries;
    body.disk_bytes = store.bytes;
    body.disk_hits = store.hits;
    body.disk_misses = store.misses;
    body.disk_evictions = store.evictions;
    body.disk_damaged = store.damaged;
    body.disk_dropped = store.dropped;
    body.disk_shared = store.shared;
}

fn fill_datasets(body: &mut StatsBody, shares: &[ShareReport], reader: &ReaderStats) {
    let sum = |of: fn(&ShareReport) -> u64| shares.iter().map(of).sum();
    body.datasets_share_bytes = sum(|share| share.share);
    body.datasets_bytes = sum(|share| share.cached);
    body.datasets_items = sum(|share| share.items);
    body.datasets_origin_bytes = sum(|share| share.origin_bytes);
    body.datasets_requests = reader.requests;
    body.datasets_unpaid = reader.unpaid;
    body.datasets_elsewhere = reader.elsewhere;
    body.datasets_unattributed_bytes = reader.unattributed_bytes;
}

fn fill_caches(
    body: &mut StatsBody,
    data: &CacheStats,
    attributes: &CacheStats,
    listings: &CacheStats,
) {
    body.cache_data_entries = data.entries;
    body.cache_data_bytes = data.bytes;
    body.cache_data_hits = data.hits;
    body.cache_data_misses = data.misses;
    body.cache_data_evictions = data.evictions;
    body.cache_attributes_entries = attributes.entries;
    body.cache_attributes_bytes = attributes.bytes;
    body.cache_attributes_hits = attributes.hits;
    body.cache_attributes_misses = attributes.misses;
    body.cache_attributes_evictions = attributes.evictions;
    body.cache_listings_entries = listings.entries;
    body.cache_listings_bytes = listings.bytes;
    body.cache_listings_hits = listings.hits;
    body.cache_listings_misses = listings.misses;
    body.cache_listings_evictions = listings.evictions;
}

/// Resident memory of this process in bytes, as the kernel counts it.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
