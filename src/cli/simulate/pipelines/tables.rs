//! The text of studies.

use crate::cli::{Table, or_dash, percent};
use crate::num::whole;
use copperfs_policy::amounts::ByteSize;
use copperfs_simulate::pipelines::{InactiveAt, Space, Study, Summary, summaries};

/// Returns the tables, with an empty line between two.
pub(super) fn report(studies: &[Study]) -> String {
    let mut tables = vec![workloads(studies), rows(studies), inactive(studies)];
    if studies.iter().any(|study| !study.spaces.is_empty()) {
        tables.push(spaces(studies));
    }
    if studies.len() > 1 {
        tables.push(summary(&summaries(studies)));
    }
    let tables: Vec<&str> = tables.iter().map(|table| table.trim_end()).collect();
    tables.join("\n\n")
}

fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

fn bytes(value: f64) -> String {
    ByteSize(whole(value)).to_string()
}

fn workloads(studies: &[Study]) -> String {
    let top =
        |study: &Study, at: usize| or_dash(study.ranks.get(at).map(|one| percent(one.top_tenth)));
    Table::of(studies)
        .column("workload", |study| study.name())
        .column("inputs", |study| ByteSize(study.inputs_bytes).to_string())
        .column("blocks", |study| study.blocks)
        .column("jobs", |study| study.jobs)
        .column("tasks", |study| study.tasks)
        .column("distance", |study| {
            or_dash(study.reference_distance.map(ratio))
        })
        .column("top tenth: count", |study| top(study, 0))
        .column("online count", |study| top(study, 1))
        .column("recency", |study| top(study, 2))
        .column("frequency", |study| top(study, 3))
        .column("kept online", |study| {
            or_dash(study.kept_online().map(percent))
        })
        .text()
}

fn rows(studies: &[Study]) -> String {
    let all = studies
        .iter()
        .flat_map(|study| study.rows.iter().map(move |row| (study, row)));
    Table::of(all)
        .column("workload", |(study, _)| study.name())
        .column("cache", |(_, row)| ByteSize(row.cache_bytes).to_string())
        .column("of inputs", |(_, row)| percent(row.cache_share))
        .column("policy", |(_, row)| row.policy)
        .column("hit ratio", |(_, row)| ratio(row.hit_ratio))
        .column("gain over LRU", |(_, row)| format!("{:+.3}", row.over_lru))
        .column("least gain", |(_, row)| format!("{:+.3}", row.over_lru_min))
        .column("ratio to LRU", |(_, row)| {
            or_dash(row.to_lru.map(|times| format!("{times:.2}")))
        })
        .column("from storage", |(_, row)| bytes(row.storage_bytes))
        .column("evictions", |(_, row)| whole(row.evictions))
        .text()
}

fn inactive(studies: &[Study]) -> String {
    let all = studies
        .iter()
        .flat_map(|study| study.inactive.iter().map(move |at| (study, at)));
    let share =
        |value: fn(&InactiveAt) -> f64| move |(_, at): &(&Study, &InactiveAt)| percent(value(at));
    Table::of(all)
        .column("workload", |(study, _)| study.name())
        .column("cache, LRU", |(_, at)| ByteSize(at.cache_bytes).to_string())
        .column("inactive: median", share(|at| at.inactive.median))
        .column("95 %", share(|at| at.inactive.p95))
        .text()
}

fn spaces(studies: &[Study]) -> String {
    let all = studies
        .iter()
        .flat_map(|study| study.spaces.iter().map(move |space| (study, space)));
    let share = |study: &Study, space: &Space| {
        space
            .bytes
            .map(|bytes| percent(bytes / crate::num::as_f64(study.inputs_bytes.max(1))))
    };
    Table::of(all)
        .column("workload", |(study, _)| study.name())
        .column("for hit ratio", |(_, space)| space.hit_ratio)
        .column("policy", |(_, space)| space.policy)
        .column("space", |(_, space)| or_dash(space.bytes.map(bytes)))
        .column("of inputs", |(study, space)| or_dash(share(study, space)))
        .column("ratio to LRU", |(_, space)| {
            or_dash(space.to_lru.map(ratio))
        })
        .text()
}

fn summary(summaries: &[Summary]) -> String {
    let spaces = |summary: &Summary| {
        let spaces = summary.spaces_to_lru.iter();
        let spaces = spaces.map(|(hit_ratio, space)| format!("{space:.3} for {hit_ratio}"));
        spaces.collect::<Vec<_>>().join(", ")
    };
    Table::of(summaries)
        .column("all workloads", |summary| summary.policy)
        .column("hit ratio", |summary| ratio(summary.hit_ratio))
        .column("gain over LRU", |summary| {
            format!("{:+.3}", summary.over_lru)
        })
        .column("least gain", |summary| {
            format!("{:+.3}", summary.over_lru_min)
        })
        .column("space, ratio to LRU", |summary| spaces(summary))
        .text()
}
