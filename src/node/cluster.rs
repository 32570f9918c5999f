//! This node and its cluster, as operators see them: counters, sums, clearing everywhere.

use crate::cache::CacheStats;
use crate::origin::Origins;
use crate::read::ReadPath;
use crate::report::Report;
use bytes::Bytes;
use copperfs_fuse as fuse;
use copperfs_overlay::{Failure, FailureKind, ItemPath, Overlay};
use fuse::ioctl::{NO_PARENT, NodeName, ROLE_INNER, ROLE_LEAF, ROLE_ROOT, ROLE_SINGLE, StatsBody};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Who a node is.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) rank: usize,
    pub(super) nodes: usize,
    pub(super) parent: Option<usize>,
    pub(super) has_children: bool,
    pub(super) started: Instant,
    pub(super) control_socket: PathBuf,
}

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Cluster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    identity: Identity,
    read: ReadPath,
    /// On the root, and where big files are read from storage directly.
    origins: Option<Arc<Origins>>,
    mount: OnceLock<Arc<fuse::Counters>>,
    overlay: OnceLock<Arc<Overlay>>,
}

/// The reports of a cluster.
pub(crate) struct Reports {
    /// One per node that answered, in rank order.
    pub(crate) nodes: Vec<Report>,
    /// Names of those that did not.
    pub(crate) missing: Vec<String>,
}

impl Cluster {
    pub(super) fn new(identity: Identity, read: ReadPath, origins: Option<Arc<Origins>>) -> Self {
        let (mount, overlay) = (OnceLock::new(), OnceLock::new());
        Self(Arc::new(Inner {
            identity,
            read,
            origins,
            mount,
            overlay,
        }))
    }

    /// Counts the mount's requests too, from now on.
    pub(super) fn mounted(&self, counters: Arc<fuse::Counters>) {
        drop(self.0.mount.set(counters));
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
            mount,
            overlay,
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
        let mut body = StatsBody {
            node: NodeName::new(&identity.name),
            pid: u64::from(std::process::id()),
            rank: identity.rank as u64,
            role: match (identity.parent, identity.has_children) {
                _ if identity.nodes == 1 => ROLE_SINGLE,
                (None, _) => ROLE_ROOT,
                (Some(_), true) => ROLE_INNER,
                (Some(_), false) => ROLE_LEAF,
            },
            parent: identity.parent.map_or(NO_PARENT, |parent| parent as u64),
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
            verify_blocks: stats.blocks_verified,
            verify_failures: stats.verify_failures,
            bundle_requests: stats.bundles.requests,
            bundle_files: stats.bundles.files,
            bundle_useful_bytes: stats.bundles.useful_bytes,
            bundle_wasted_bytes: stats.bundles.wasted_bytes,
            ..StatsBody::default()
        };
        fill_caches(&mut body, &stats.data, &stats.attributes, &stats.listings);
        if let Some(counters) = mount.get() {
            counters.fill(&mut body);
        }
        body
    }

    /// This node's report, as it travels.
    pub(super) fn report(&self) -> Bytes {
        let report = Report::from(self.node_stats()).into_json();
        // A struct of numbers and names always has a JSON form.
        serde_json::to_vec(&report)
            .map(Bytes::from)
            .unwrap_or_default()
    }

    /// The reports of all nodes. Ends within the request time-out.
    pub(crate) async fn reports(&self) -> Reports {
        let Some(overlay) = self.0.overlay.get() else {
            let nodes = vec![Report::from(self.node_stats())];
            return Reports {
                nodes,
                missing: Vec::new(),
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
        }
    }

    /// The counters of all nodes, summed.
    pub(super) async fn sum(&self) -> StatsBody {
        let mut sum = StatsBody::default();
        for report in self.reports().await.nodes {
            sum.add(&report.to_stats());
        }
        sum.parent = NO_PARENT;
        sum
    }

    /// Drops `path` and below on every node, the root first.
    ///
    /// # Errors
    /// `Unavailable`, naming the nodes that could not be told.
    pub(super) async fn clear(&self, path: ItemPath) -> Result<(), Failure> {
        let Some(overlay) = self.0.overlay.get() else {
            return Err(Failure::new(
                FailureKind::Unavailable,
                "the node is still starting",
            ));
        };
        let outcome = overlay.clear_cluster(path).await;
        if outcome.missing.is_empty() && outcome.failed.is_empty() {
            return Ok(());
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
