//! Frames of reports that are small enough to be sent. Pure.

use crate::model::{NodeReport, ReportFrame, encode, is_decodable};
use bytes::Bytes;
use copperfs_overlay::STEERING_BYTES_MAX;

/// Encodes `frame`. It has room for thousands of nodes. From a larger one some things are left out, those first that
/// are missed least: the histories of epochs, which are only displayed; then the readers of chunks, of the nodes with
/// the most of them first, so that chunks do not wait for these; then the last nodes; then jobs of the only node that
/// is left. A node that sent no frame at all would count as dead, and so would the nodes below it.
pub(super) fn fitting(mut frame: ReportFrame) -> Bytes {
    let mut bytes = encode(&frame);
    if fits(&bytes) {
        return bytes.into();
    }
    for job in frame.reports.iter_mut().flat_map(|report| &mut report.jobs) {
        job.epochs.clear();
    }
    loop {
        bytes = encode(&frame);
        if fits(&bytes) {
            return bytes.into();
        }
        let left_out = leave_out_readings(&mut frame.reports)
            || halve(&mut frame.reports, 1, "nodes")
            || halve(&mut frame.reports[0].jobs, 0, "jobs");
        // Nothing else in a report grows with what its node does.
        if !left_out {
            return bytes.into();
        }
    }
}

fn fits(bytes: &[u8]) -> bool {
    bytes.len() <= STEERING_BYTES_MAX && is_decodable(bytes)
}

/// Leaves out the readings of the nodes that have more than half as many as any other. Returns whether there were any.
fn leave_out_readings(reports: &mut [NodeReport]) -> bool {
    let most = reports.iter().map(|report| report.readings.len()).max();
    let most = most.unwrap_or(0);
    if most == 0 {
        return false;
    }
    let mut left_out = 0;
    for report in reports {
        if report.readings.len() * 2 > most {
            left_out += report.readings.len();
            report.readings.clear();
        }
    }
    tracing::warn!(
        readers = left_out,
        "more readers of chunks than a frame of reports has room for; no chunk waits for these"
    );
    true
}

/// Leaves out the second half of `items`, but at least `kept_min`. Returns whether there is something to leave out.
fn halve<T>(items: &mut Vec<T>, kept_min: usize, name: &str) -> bool {
    let kept = (items.len() / 2).max(kept_min);
    if kept >= items.len() {
        return false;
    }
    let all = items.len();
    tracing::warn!(
        all,
        kept,
        "more {name} than a frame of reports has room for"
    );
    items.truncate(kept);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{JobReport, ReadingReport, decode};
    use crate::testing::noise;
    use copperfs_policy::chunks::{Reader, Reading};

    /// A name that does not compress.
    fn name(number: usize) -> String {
        let noise = noise(number.to_le_bytes(), 64);
        noise.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn node(rank: u32, readers: usize, jobs: usize) -> NodeReport {
        let reading = |number: usize| ReadingReport {
            dataset: 1,
            reader: Reader {
                job: name(number),
                part: number as u64,
            },
            reading: Reading::default(),
        };
        let job = |number: usize| JobReport {
            job: name(number),
            epochs: vec![(1, 2, 3); 8],
            ..JobReport::default()
        };
        NodeReport {
            rank,
            readings: (0..readers).map(reading).collect(),
            jobs: (0..jobs).map(job).collect(),
            ..NodeReport::default()
        }
    }

    fn sent(reports: Vec<NodeReport>) -> Vec<NodeReport> {
        let bytes = fitting(ReportFrame {
            reports,
            ..ReportFrame::default()
        });
        assert!(bytes.len() <= STEERING_BYTES_MAX, "{}", bytes.len());
        let frame: ReportFrame = decode(&bytes).unwrap();
        frame.reports
    }

    #[test]
    fn a_flood_of_readers_costs_no_node_its_report() {
        let mut reports: Vec<NodeReport> = (1..50).map(|rank| node(rank, 8, 1)).collect();
        reports.insert(20, node(99, 9000, 1));
        let told = sent(reports);
        assert_eq!(told.len(), 50);
        for report in told {
            let wanted = if report.rank == 99 { 0 } else { 8 };
            assert_eq!(report.readings.len(), wanted, "node {}", report.rank);
        }
    }

    #[test]
    fn one_report_alone_always_fits() {
        let told = sent(vec![node(7, 9000, 20_000)]);
        assert_eq!((told.len(), told[0].rank), (1, 7));
        assert!(!told[0].jobs.is_empty());
    }

    /// Compressed they are short, but no node accepts as many bytes from another.
    #[test]
    fn what_decompresses_to_too_much_is_not_sent() {
        let mut large = node(1, 0, 0);
        large.jobs = vec![
            JobReport {
                job: "j".repeat(1000),
                ..JobReport::default()
            };
            40_000
        ];
        let told = sent(vec![node(0, 1, 1), large]);
        assert_eq!((told.len(), told[0].rank), (1, 0));
    }

    #[test]
    fn a_frame_that_fits_is_sent_whole() {
        let reports: Vec<NodeReport> = (0..300).map(|rank| node(rank, 8, 2)).collect();
        assert_eq!(sent(reports.clone()), reports);
    }
}
