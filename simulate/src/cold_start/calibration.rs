//! The measurements of `copperfs bench tree --calibrate` on a machine.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The maximum length of a calibration file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Costs of the software on one machine. Times are in seconds and rates in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The delay from one node to the next: half of the round trip of one byte over one hop.
    pub hop_s: f64,
    /// A parent's core time for one small request.
    pub request_cpu_s: f64,
    /// The verified throughput of one hop, limited only by the processor.
    pub bandwidth: f64,
    /// Core seconds for a gibibyte over one hop, on both ends together.
    pub cpu_s_per_gib: f64,
}

/// Why a calibration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The file cannot be read.
    #[error("cannot read the calibration {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not a calibration.
    #[error(
        "{path} is no calibration: {source}. Make one with: copperfs bench tree --calibrate FILE"
    )]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// A number is out of range.
    #[error("{path}: {what} must be above 0. Make one with: copperfs bench tree --calibrate FILE")]
    Number {
        /// Which file.
        path: PathBuf,
        /// Which number.
        what: &'static str,
    },
}

impl Calibration {
    /// Reads the calibration in the file at `path`.
    ///
    /// # Errors
    /// See [`CalibrationError`].
    pub fn load(path: &Path) -> Result<Self, CalibrationError> {
        use std::io::Read;
        let failed = |source| CalibrationError::Io {
            path: path.into(),
            source,
        };
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        // The path may name any file, so bound the read.
        file.take(FILE_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(failed)?;
        let found: Self =
            serde_json::from_slice(&text).map_err(|source| CalibrationError::Malformed {
                path: path.into(),
                source,
            })?;
        for (what, value) in [
            ("hop_s", found.hop_s),
            ("request_cpu_s", found.request_cpu_s),
            ("bandwidth", found.bandwidth),
            ("cpu_s_per_gib", found.cpu_s_per_gib),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(CalibrationError::Number {
                    path: path.into(),
                    what,
                });
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_is_read_back_and_invalid_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calibration.json");
        let good = Calibration {
            hop_s: 8e-6,
            request_cpu_s: 1e-5,
            bandwidth: 9e8,
            cpu_s_per_gib: 0.8,
        };
        std::fs::write(&path, serde_json::to_vec(&good).unwrap()).unwrap();
        assert_eq!(Calibration::load(&path).unwrap(), good);
        let wrong = Calibration {
            bandwidth: 0.0,
            ..good
        };
        std::fs::write(&path, serde_json::to_vec(&wrong).unwrap()).unwrap();
        let said = Calibration::load(&path).unwrap_err().to_string();
        assert!(said.contains("bandwidth must be above 0"), "{said}");
        std::fs::write(&path, "{}").unwrap();
        assert!(Calibration::load(&path).is_err());
        assert!(Calibration::load(&dir.path().join("absent")).is_err());
    }
}
