//! One parameter over several values: `--sweep remote-io=2GB/s,4GB/s`.

use super::shown_rate;
use crate::cli::percent;
use copperfs_simulate::cluster::generate::share;
use copperfs_simulate::cluster::trace::rate;
use copperfs_simulate::cluster::{Scenario, Workload};
use std::borrow::Cow;

/// The maximum number of values of a sweep. Each is a whole run.
const VALUES_MAX: usize = 64;

/// The parameter that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parameter {
    RemoteIo,
    GpuSpeed,
    Sharing,
}

impl Parameter {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RemoteIo => "remote-io",
            Self::GpuSpeed => "gpu-speed",
            Self::Sharing => "sharing",
        }
    }

    /// One of its values, with a unit.
    pub(super) fn shown(self, value: f64) -> String {
        match self {
            Self::RemoteIo => shown_rate(value),
            Self::GpuSpeed => format!("{value} ×"),
            Self::Sharing => percent(value),
        }
    }

    /// Its name in titles.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::RemoteIo => "remote IO",
            Self::GpuSpeed => "GPU speed",
            Self::Sharing => "sharing of datasets",
        }
    }

    /// The label of its axis, and the factor for its values there.
    pub(super) fn axis(self) -> (&'static str, f64) {
        match self {
            Self::RemoteIo => ("remote IO (GB/s)", 1e-9),
            Self::GpuSpeed => ("GPU speed (V100 = 1)", 1.0),
            Self::Sharing => ("jobs that share their dataset (%)", 100.0),
        }
    }
}

/// A sweep.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sweep {
    pub(super) parameter: Parameter,
    pub(super) values: Vec<f64>,
}

impl Sweep {
    /// Changes the scenario or the workload to one value.
    pub(super) fn set(
        &self,
        value: f64,
        scenario: &mut Scenario,
        workload: &mut Cow<'_, Workload>,
    ) -> anyhow::Result<()> {
        match self.parameter {
            Parameter::RemoteIo => scenario.remote_io = value,
            Parameter::GpuSpeed => scenario.gpu_speed = value,
            Parameter::Sharing => *workload = Cow::Owned(share(workload, value, scenario.seed)?),
        }
        Ok(())
    }
}

/// Parses `PARAMETER=VALUE,VALUE,…`.
pub(super) fn sweep(text: &str) -> Result<Sweep, String> {
    const FORMS: &str = "Write remote-io=2GB/s,4GB/s or gpu-speed=1,2,4 or sharing=0,0.5,1";
    let (name, values) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} has no \"=\". {FORMS}"))?;
    let parameter = match name.trim() {
        "remote-io" => Parameter::RemoteIo,
        "gpu-speed" => Parameter::GpuSpeed,
        "sharing" => Parameter::Sharing,
        other => return Err(format!("{other:?} cannot be varied. {FORMS}")),
    };
    let parse = |text: &str| {
        if parameter == Parameter::RemoteIo {
            return rate(text).map_err(|error| error.to_string());
        }
        let value: f64 =
            (text.trim().parse()).map_err(|error| format!("{text:?}: {error}. {FORMS}"))?;
        let is_valid = match parameter {
            Parameter::Sharing => (0.0..=1.0).contains(&value),
            _ => value > 0.0 && value <= 1e6,
        };
        let error = || format!("{text:?} is out of range. {FORMS}");
        is_valid.then_some(value).ok_or_else(error)
    };
    let values: Vec<f64> = values.split(',').map(parse).collect::<Result<_, _>>()?;
    if values.len() > VALUES_MAX {
        return Err(format!("more than {VALUES_MAX} values"));
    }
    Ok(Sweep { parameter, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_parsed() {
        let io = sweep("remote-io=2GB/s,1.6Gbit/s").unwrap();
        assert_eq!(io.values, [2e9, 2e8]);
        assert_eq!(io.parameter.shown(2e9), "2.00 GB/s");
        assert_eq!(Parameter::Sharing.shown(0.5), "50.0 %");
        assert_eq!(sweep("sharing=0,0.5,1").unwrap().values, [0.0, 0.5, 1.0]);
        for wrong in [
            "remote-io",
            "remote-io=2",
            "remote-io=",
            "gpu-speed=0",
            "gpu-speed=-1",
            "sharing=1.5",
            "cache=1TB",
        ] {
            assert!(sweep(wrong).is_err(), "{wrong}");
        }
    }
}
