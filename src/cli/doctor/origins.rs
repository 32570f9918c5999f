//! Checks of the origins that `copperfs doctor` is given.

use super::{DoctorArgs, fail};
use crate::cli::daemon::run;
use crate::config::{Layer, Machine, Source, gather, resolve};
use crate::origin::{Finding, OriginOptions, Origins, Retries};

/// Checks the origins with the settings of a mount with these flags and variables.
///
/// # Errors
/// The flags or the configuration file are invalid.
pub(super) fn look(args: DoctorArgs, machine: &Machine) -> anyhow::Result<Vec<Finding>> {
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
                Ok(origin) => checks.extend(origin.examine().await),
                Err(error) => {
                    let text = error.to_string();
                    let parts = text.split_once("; ");
                    let (found, fix) = parts.unwrap_or((&text, "look at its options"));
                    checks.push(Finding {
                        what: "origin open",
                        ..fail(found, fix)
                    });
                }
            }
        }
        Ok(checks)
    })
}
