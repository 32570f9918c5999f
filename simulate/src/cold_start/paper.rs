//! Start-up times stated in the text of Copper's paper, for the plot. They contain Python's own work, which
//! the model does not.
//!
//! N. Lewis, K. Velusamy, K. Harms, H. Zheng: "Copper: Cooperative Caching Layer for Scalable Data
//! Loading in Exascale Supercomputers". Measured on Aurora with 12 Python processes per node and a
//! Lustre filesystem of 650 GB/s. Only values stated in the text are included, and none were read
//! off a figure.

use crate::chart::{Series, thousands};

/// One stated time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stated {
    /// The measured system: `Lustre` (files directly from it) or `Copper`.
    pub system: &'static str,
    /// The started program.
    pub what: &'static str,
    /// The range of node numbers, for which the statement holds.
    pub nodes: (f64, f64),
    /// Seconds.
    pub seconds: f64,
    /// The section of the paper.
    pub section: &'static str,
}

impl Stated {
    /// Returns the time as a curve: one point, or the range of the statement.
    #[must_use]
    pub fn series(&self) -> Series {
        let (from, to) = self.nodes;
        let [first, last] = [from, to].map(|nodes| thousands(&nodes.to_string()));
        let (nodes, points) = if from < to {
            let ends = vec![(from, self.seconds), (to, self.seconds)];
            (format!("{first} to {last}"), ends)
        } else {
            (first, vec![(from, self.seconds)])
        };
        Series {
            name: format!(
                "{}, {}: {} s at {nodes} nodes (measured, with Python; paper {})",
                self.system, self.what, self.seconds, self.section
            ),
            points,
            dots: true,
            hollow: true,
        }
    }
}

/// All stated times.
pub const STATED: [Stated; 4] = [
    Stated {
        system: "Lustre",
        what: "import horovod, cold",
        nodes: (512.0, 512.0),
        seconds: 603.0,
        section: "II, Fig. 1",
    },
    Stated {
        system: "Lustre",
        what: "import mpi4py, cold",
        nodes: (512.0, 512.0),
        seconds: 100.0,
        section: "II, Fig. 1",
    },
    // "decreasing import times by 60 seconds when using 2,048 nodes. This effectively halves the time":
    // 120 s and 60 s.
    Stated {
        system: "Lustre",
        what: "import torch, cold",
        nodes: (2048.0, 2048.0),
        seconds: 120.0,
        section: "V, Fig. 4",
    },
    // "constant load times when scaling from 32 to 8,300 nodes".
    Stated {
        system: "Copper",
        what: "import torch, cold",
        nodes: (32.0, 8300.0),
        seconds: 60.0,
        section: "V, Fig. 4",
    },
];
