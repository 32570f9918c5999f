//! The parameters of each kind of workload that are checked before it is written.

use super::graph::Graph;
use super::workload::{App, Shape};

impl Shape {
    /// Returns the graphs of its applications.
    pub(super) fn graphs(&self) -> Vec<&Graph> {
        match self {
            Self::PageRank(graph) | Self::Pregel(graph) | Self::SvdPlusPlus(graph) => vec![graph],
            Self::Tenants(tenants) => tenants.apps.iter().map(App::graph).collect(),
            Self::Samples(_) | Self::Nightly(_) | Self::Windows(_) | Self::Scanner(_) => Vec::new(),
        }
    }

    /// Returns the parameters that count something, which must be at least 1.
    pub(super) fn counts(&self) -> Vec<(&'static str, usize)> {
        match self {
            Self::PageRank(_) | Self::Pregel(_) | Self::SvdPlusPlus(_) => Vec::new(),
            Self::Samples(samples) => vec![("samples", samples.samples), ("slots", samples.slots)],
            Self::Nightly(nightly) => {
                let windows = nightly.windows.iter().map(|days| ("windows", *days));
                let counts = [
                    ("nights", nightly.nights),
                    ("the number of windows", nightly.windows.len()),
                    ("queries", nightly.queries),
                    ("slots", nightly.slots),
                ];
                counts.into_iter().chain(windows).collect()
            }
            Self::Windows(windows) => vec![
                ("partitions", windows.partitions),
                ("window", windows.window),
                ("active", windows.active),
                ("slots", windows.slots),
                // A window has at most all partitions.
                (
                    "partitions without the first window",
                    (windows.partitions + 1).saturating_sub(windows.window),
                ),
            ],
            Self::Scanner(scanner) => vec![("jobs", scanner.jobs), ("slots", scanner.slots)],
            Self::Tenants(tenants) => vec![
                ("tenants", tenants.tenants),
                ("the number of apps", tenants.apps.len()),
            ],
        }
    }

    /// Returns the parameters that must be within 0 and 1.
    pub(super) fn factors(&self) -> Vec<(&'static str, f64)> {
        match self {
            Self::Samples(samples) => vec![("spread", samples.spread)],
            Self::Nightly(nightly) => vec![("spread", nightly.spread)],
            Self::Windows(windows) => vec![("spread", windows.spread)],
            Self::Scanner(scanner) => vec![("part", scanner.part)],
            _ => Vec::new(),
        }
    }

    /// Returns the number of blocks, if each file has the median size.
    pub(super) fn blocks_max(&self) -> u64 {
        let of = |bytes: u64, block: u64| bytes.div_ceil(block.max(1));
        match self {
            Self::Samples(samples) => {
                let block = samples.block.0;
                let shared = of(samples.index.0, block) + of(samples.genome.0, block);
                shared.saturating_add(of(samples.sample.0, block) * samples.samples as u64)
            }
            Self::Nightly(nightly) => {
                let longest = nightly.windows.iter().max().copied().unwrap_or(0);
                of(nightly.day.0, nightly.block.0).saturating_mul((longest + nightly.nights) as u64)
            }
            Self::Windows(windows) => {
                of(windows.partition.0, windows.block.0).saturating_mul(windows.partitions as u64)
            }
            Self::Scanner(scanner) => {
                let datasets = of(scanner.dataset.0, scanner.block.0).saturating_mul(2);
                datasets.saturating_add(of(scanner.scanned.0, scanner.block.0))
            }
            Self::PageRank(_) | Self::Pregel(_) | Self::SvdPlusPlus(_) | Self::Tenants(_) => 0,
        }
    }
}

impl App {
    fn graph(&self) -> &Graph {
        match self {
            Self::PageRank(graph) | Self::Pregel(graph) | Self::SvdPlusPlus(graph) => graph,
        }
    }
}
