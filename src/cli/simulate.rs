//! `copperfs simulate`: the command lines of the simulators.

mod cluster;
mod figures;
mod pipelines;
mod plot;
mod sweep;
mod trace;
mod tree;

use clap::Subcommand;

/// The simulators.
#[derive(Debug, Subcommand)]
pub enum SimulateCommand {
    /// Simulate a cold start: all nodes of a tree read the same files at once
    #[command(after_help = "Examples:\n  \
            copperfs simulate tree --nodes 8300 --arity 4 --link 25GB/s --hop 2us\n  \
            copperfs simulate tree --profile torch.jsonl --nodes 100000 --json\n  \
            copperfs simulate tree --nodes 8300 --calibration here.json --plot cold.svg\n\n\
            The times are of data movement only. They leave out Python and all other work of the \
            program (add it with --think), FUSE and packet loss. The processor time of copperfs is \
            zero unless --request-cpu or --calibration sets it. Links and cores are divided evenly \
            among their users. So a time is a lower bound, which a real tree approaches if its links \
            are the bottleneck. Rates are those of the payload; --mtu subtracts the headers of \
            packets from --link. docs/MODEL.md describes the model.")]
    Tree(Box<tree::TreeArgs>),
    /// Simulate a training cluster, whose jobs share GPUs, cache and storage bandwidth
    #[command(after_help = "Examples:\n  \
            copperfs simulate cluster config/simulate-8v100.toml --system all\n  \
            copperfs simulate cluster trace.csv --gpus 400 --cache 50TB --remote-io 4GB/s \\\n    \
            --scheduler gavel --system silod,quiver --plot figures\n  \
            copperfs simulate cluster trace.csv --gpus 400 --cache 50TB --remote-io 4GB/s \\\n    \
            --system silod,alluxio --sweep remote-io=2GB/s,4GB/s,8GB/s --json\n\n\
            A trace has the columns id,submit_s,model,dataset,dataset_bytes,gpus,ideal_rate,\
            work_bytes (bytes and bytes per second). `copperfs simulate trace` generates one. \
            The model leaves out the network between nodes, start-up times and failures. \
            docs/SIMULATOR.md describes it, and compares it with the paper.")]
    Cluster(Box<cluster::ClusterArgs>),
    /// Simulate pipelines of tasks that share a cache, and compare policies of eviction (LRC)
    #[command(after_help = "Examples:\n  \
            copperfs simulate pipelines paper --policy lrc,lrc-offline,lru\n  \
            copperfs simulate pipelines read-only --policy lrc,lru --seeds 10 --hit-ratio 0.5\n  \
            copperfs simulate pipelines tenants --policy lrc,lru --cache 1.26GB --tenants 8,12,16,20\n  \
            copperfs simulate pipelines trace.json --cache 10%,1GB --json\n  \
            copperfs simulate pipelines connected-components --plot lrc.svg\n\n\
            The named workloads are those of config/simulate-pipelines*.toml. Each policy runs in the \
            engine of `copperfs lrc replay`. The model counts hits and bytes, and has no run times. \
            docs/SIMULATOR.md describes the workloads, and compares the results with the paper.")]
    Pipelines(pipelines::PipelinesArgs),
    /// Generate a trace for `simulate cluster`, with jobs as in Microsoft's clusters and SiloD's models
    #[command(after_help = "Examples:\n  \
            copperfs simulate trace --jobs 4200 --days 14 --seed 1 > trace.csv\n  \
            copperfs simulate trace --jobs 1000 --days 3 --sharing 0.5 --output trace.csv")]
    Trace(trace::TraceArgs),
}

/// Simulates and prints.
///
/// # Errors
/// A file cannot be read or written, or the scenario is invalid.
pub fn simulate(command: SimulateCommand) -> anyhow::Result<()> {
    match command {
        SimulateCommand::Tree(args) => tree::simulate(&args),
        SimulateCommand::Cluster(args) => cluster::simulate(&args),
        SimulateCommand::Pipelines(args) => pipelines::simulate(&args),
        SimulateCommand::Trace(args) => trace::write(&args),
    }
}

/// Seconds with a unit.
pub(super) fn shown(seconds: f64) -> String {
    match seconds {
        0.0 | 1.0.. => format!("{seconds:.2} s"),
        1e-3.. => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{:.2} µs", seconds * 1e6),
    }
}

/// A rate with a 1000-based unit, as for links.
pub(super) fn shown_rate(rate: f64) -> String {
    match rate {
        1e9.. => format!("{:.2} GB/s", rate / 1e9),
        1e6.. => format!("{:.2} MB/s", rate / 1e6),
        _ => format!("{rate:.0} B/s"),
    }
}
