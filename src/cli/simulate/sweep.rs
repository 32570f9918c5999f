//! One parameter over several values: `--sweep remote-io=2GB/s,4GB/s`.

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
    /// The scenario and the workload at one value.
    pub(super) fn at<'a>(
        &self,
        value: f64,
        scenario: &Scenario,
        workload: &'a Workload,
    ) -> anyhow::Result<(Scenario, Cow<'a, Workload>)> {
        let mut scenario = scenario.clone();
        let mut workload = Cow::Borrowed(workload);
        match self.parameter {
            Parameter::RemoteIo => scenario.remote_io = value,
            Parameter::GpuSpeed => scenario.gpu_speed = value,
            Parameter::Sharing => {
                workload = Cow::Owned(share(&workload, value, scenario.seed)?);
            }
        }
        Ok((scenario, workload))
    }
}

/// Parses one value.
type Parse<'a> = dyn Fn(&str) -> Result<f64, String> + 'a;

/// Parses `PARAMETER=VALUE,VALUE,…`.
pub(super) fn sweep(text: &str) -> Result<Sweep, String> {
    const FORMS: &str = "Write remote-io=2GB/s,4GB/s or gpu-speed=1,2,4 or sharing=0,0.5,1";
    let (name, values) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} has no \"=\". {FORMS}"))?;
    let number = |text: &str| -> Result<f64, String> {
        text.trim()
            .parse()
            .map_err(|error| format!("{text:?}: {error}. {FORMS}"))
    };
    let within = |text: &str, most: f64, zero: bool| {
        let value = number(text)?;
        let low = if zero { value >= 0.0 } else { value > 0.0 };
        if low && value <= most {
            Ok(value)
        } else {
            Err(format!("{text:?} is out of range. {FORMS}"))
        }
    };
    let (parameter, parse): (_, &Parse<'_>) = match name.trim() {
        "remote-io" => (Parameter::RemoteIo, &|text| {
            rate(text).map_err(|error| error.to_string())
        }),
        "gpu-speed" => (Parameter::GpuSpeed, &|text| within(text, 1e6, false)),
        "sharing" => (Parameter::Sharing, &|text| within(text, 1.0, true)),
        other => return Err(format!("{other:?} cannot be varied. {FORMS}")),
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
