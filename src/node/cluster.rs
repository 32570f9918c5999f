//! Reports and commands of operators: this node's counters, those of all nodes, and `clear` on all nodes.

use super::metrics::Metrics;
use super::sweeps::Sweeps;
use crate::config::{Crossings, Settings};
use crate::origin::Origins;
use crate::pressure::Pressure;
use crate::report::{Children, Identity, Report, Role, Standing};
use bytes::Bytes;
use copperfs_fuse::{self as fuse, StatsAge};
use copperfs_metrics::{Registry, Snapshot};
use copperfs_overlay::{Failure, FailureKind, ItemPath, Membership, Overlay};
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The identity of a node that is still starting.
fn starting() -> Identity {
    Identity {
        node: String::new(),
        pid: std::process::id(),
        rank: None,
        role: Role::Single,
        parent: None,
    }
}

fn identity(membership: &Membership) -> Identity {
    let (rank, forest) = (membership.rank(), membership.forest());
    Identity {
        node: membership.name().to_owned(),
        rank,
        role: match rank {
            Some(_) if membership.members().len() == 1 => Role::Single,
            Some(rank) if forest.is_root(rank) => Role::Root,
            Some(rank) if forest.is_inner(rank) => Role::Inner,
            _ => Role::Leaf,
        },
        parent: membership.ancestors(0).first().copied(),
        ..starting()
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct Cluster(Arc<Inner>);

struct Inner {
    sockets: fuse::Sockets,
    /// The paths of the origins in the namespace.
    prefixes: Vec<ItemPath>,
    /// The number of edges of the tree that cross switches, if known.
    crossings: Option<Crossings>,
    /// Whether daemons are followed by others.
    takeover: bool,
    /// The metrics of all parts of the node.
    metrics: Arc<Metrics>,
    /// Storage: on roots, and on nodes that read large files from storage themselves.
    origins: Option<Arc<Origins>>,
    pressure: Pressure,
    overlay: OnceLock<Arc<Overlay>>,
    sweeps: Sweeps<Arc<Reports>>,
}

/// The reports of a cluster.
#[derive(Debug)]
pub(crate) struct Reports {
    /// One per node that answered, in rank order.
    pub(crate) nodes: Vec<Report>,
    /// The names of those that did not.
    pub(crate) missing: Vec<String>,
    /// The member list at that moment; `None` while the node is starting.
    pub(crate) list: Option<Value>,
}

impl Reports {
    /// `{"nodes": […], "missing": […], "list": {…}}`.
    pub(super) fn to_json(&self) -> Value {
        let nodes = self.nodes.iter().cloned().map(Report::into_json);
        json!({
            "nodes": nodes.collect::<Vec<_>>(),
            "missing": self.missing,
            "list": self.list,
        })
    }
}

/// The member list: enough to find each node's place in the trees.
fn member_list(membership: &Membership, crossings: Option<Crossings>) -> Value {
    let names = membership.members().iter().map(|member| &member.name);
    json!({
        // The maximum number of children of a node in one tree.
        "arity": membership.forest().arity(),
        // The rank of each tree's root.
        "roots": membership.forest().roots(),
        // All names, in rank order.
        "names": names.collect::<Vec<_>>(),
        // How many edges of the trees cross switches, if that is known.
        "crossings": crossings,
    })
}

impl Cluster {
    pub(super) fn new(
        settings: &Settings,
        metrics: Arc<Metrics>,
        origins: Option<Arc<Origins>>,
    ) -> Self {
        let prefixes = settings.origins.iter();
        let pressure = Pressure::default();
        pressure.declare(metrics.registry());
        Self(Arc::new(Inner {
            sockets: fuse::Sockets {
                owner: settings.control_socket.clone(),
                users: users_socket(),
            },
            prefixes: prefixes.map(|origin| origin.prefix.clone()).collect(),
            crossings: settings.crossings,
            takeover: settings.takeover,
            metrics,
            origins,
            pressure,
            overlay: OnceLock::new(),
            sweeps: Sweeps::new(),
        }))
    }

    /// The registry of this node's metrics, to declare more in.
    pub(super) fn registry(&self) -> &Registry {
        self.0.metrics.registry()
    }

    /// The metrics of all parts of this node.
    pub(super) fn metrics(&self) -> Snapshot {
        self.0.metrics.snapshot()
    }

    /// The state of memory pressure.
    pub(super) fn pressure(&self) -> &Pressure {
        &self.0.pressure
    }

    /// From now on the other nodes can be reached, through `overlay`.
    pub(super) fn joined(&self, overlay: Arc<Overlay>) {
        drop(self.0.overlay.set(overlay));
    }

    /// The sockets for commands to this node.
    pub(super) fn sockets(&self) -> &fuse::Sockets {
        &self.0.sockets
    }

    /// This node's counters and connections.
    pub(super) fn own_report(&self) -> Report {
        let metrics = self.metrics().to_json();
        let Some(overlay) = self.0.overlay.get() else {
            return Report::new(&starting(), metrics);
        };
        let membership = overlay.membership();
        let hanging = self
            .0
            .origins
            .as_ref()
            .and_then(|origins| origins.hanging());
        let children = (0..membership.forest().roots().len()).map(|tree| Children {
            tree,
            connected: overlay.children(tree).len(),
        });
        let links = overlay.upstream().links().into_iter();
        Report::new(&identity(membership), metrics).with_standing(&Standing {
            guest: membership.rank().is_none(),
            links: links.map(Into::into).collect(),
            children: children.collect(),
            hanging: hanging.map(Into::into),
            memory_pressure: self.0.pressure.shortage().map(Into::into),
        })
    }

    /// This node's report in the form in which it is sent.
    pub(super) fn report(&self) -> Bytes {
        self.own_report().into_json().to_string().into()
    }

    /// The reports of all nodes. Returns within the request timeout.
    pub(super) async fn reports(&self, age: StatsAge) -> Arc<Reports> {
        let sweep = async { Arc::new(self.sweep().await) };
        self.0.sweeps.get(age, sweep).await
    }

    async fn sweep(&self) -> Reports {
        let Some(overlay) = self.0.overlay.get() else {
            return Reports {
                nodes: vec![self.own_report()],
                missing: Vec::new(),
                list: None,
            };
        };
        let answers = overlay.cluster_reports().await;
        let parsed = answers.reports.iter().filter_map(|report| {
            let json = serde_json::from_slice(report).ok();
            let report = json.and_then(|json| Report::from_json(json).ok());
            if report.is_none() {
                tracing::warn!("a node's report cannot be read");
            }
            report
        });
        Reports {
            nodes: parsed.collect(),
            missing: answers.missing,
            list: Some(member_list(overlay.membership(), self.0.crossings)),
        }
    }

    /// The counters of all nodes, summed.
    pub(super) async fn sum(&self, age: StatsAge) -> Report {
        Report::total(&self.reports(age).await.nodes)
    }

    /// Whether `path` is below an origin, or an origin is below `path`.
    pub(super) fn serves(&self, path: &ItemPath) -> bool {
        let mut prefixes = self.0.prefixes.iter();
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
        let (begun, mut effective) = (Instant::now(), 0);
        let outcome = loop {
            let outcome = overlay.clear_cluster(path.clone()).await;
            effective += outcome.effective;
            if outcome.missing.is_empty() && outcome.failed.is_empty() {
                return Ok(effective > 0);
            }
            if !self.0.takeover || begun.elapsed() > SUCCESSION_TIME {
                break outcome;
            }
            tokio::time::sleep(CLEAR_PAUSE).await;
        };
        let failed = outcome.failed.into_iter();
        let failed = failed.map(|(node, failure)| format!("{node} ({failure})"));
        let silent = outcome.missing.into_iter();
        let silent = silent.map(|node| format!("{node} (no answer)"));
        let others: Vec<String> = failed.chain(silent).collect();
        let detail = format!(
            "cleared on {} nodes, not on {}",
            outcome.cleared,
            others.join(", ")
        );
        Err(Failure::new(FailureKind::Unavailable, detail))
    }
}

/// How long a `clear` is repeated that did not reach all nodes, because daemons that have died are followed by others. A
/// successor takes less, and its connections as well.
const SUCCESSION_TIME: Duration = Duration::from_secs(5);
/// The pause between two of them.
const CLEAR_PAUSE: Duration = Duration::from_millis(100);

/// A name for the users' socket that no other process has, and none can take before this one.
fn users_socket() -> String {
    let random = RandomState::new().hash_one(Instant::now());
    format!("copperfs-{}-{random:016x}", std::process::id())
}
