//! Checks of the origins that `copperfs doctor` is given.

use super::{Check, DoctorArgs, Verdict, fail};
use crate::cli::daemon::run;
use crate::config::{Layer, Machine, Source, gather, resolve};
use crate::origin::{Finding, OriginOptions, Origins, Outcome, Retries};

/// Checks the origins with the settings of a mount with these flags and variables.
///
/// # Errors
/// The flags or the configuration file are invalid.
pub(super) fn look(args: DoctorArgs, machine: &Machine) -> anyhow::Result<Vec<Check>> {
    let mut layer = Layer::default();
    if !args.origins.is_empty() {
        layer.set("origin", Source::Flag, args.origins);
    }
    let layer = gather(layer, args.config.as_deref(), machine)?;
    let settings = resolve(&layer, machine)?;
    let options = OriginOptions {
        env: settings.environment.clone(),
        hang_timeout: settings.request_timeout,
        retries: Retries {
            timeout: settings.request_timeout,
            ..Retries::default()
        },
        ..OriginOptions::default()
    };
    run(async {
        let mut checks = Vec::new();
        for spec in &settings.origins {
            match Origins::open(std::slice::from_ref(spec), &options) {
                Ok(origin) => checks.extend(origin.examine().await.into_iter().map(Check::from)),
                Err(error) => {
                    let text = error.to_string();
                    let (found, fix) = text
                        .split_once("; ")
                        .unwrap_or((&text, "look at its options"));
                    let name = "origin open";
                    checks.push(Check {
                        name,
                        ..fail(found, fix)
                    });
                }
            }
        }
        Ok(checks)
    })
}

impl From<Finding> for Check {
    fn from(finding: Finding) -> Self {
        Self {
            name: finding.what,
            verdict: match finding.outcome {
                Outcome::Good => Verdict::Ok,
                Outcome::Poor => Verdict::Warn,
                Outcome::Bad => Verdict::Fail,
            },
            found: finding.found,
            fix: finding.fix,
        }
    }
}
