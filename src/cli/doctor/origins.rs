//! Checks of the origins that `copperfs doctor` is given.

use super::{DoctorArgs, fail, ok};
use crate::cli::daemon::run;
use crate::config::{Layer, Machine, Source, gather, resolve};
use crate::origin::{Finding, OriginOptions, OriginSpec, Origins, Outcome, Retries};

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
                Ok(origin) => {
                    let found = origin.examine().await;
                    let is_good = found.iter().all(|one| one.outcome != Outcome::Bad);
                    checks.extend(found);
                    checks.extend(is_good.then(|| by_homes(spec)));
                }
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

/// What a node that reads an origin by itself makes possible.
fn by_homes(spec: &OriginSpec) -> Finding {
    let prefix = &spec.prefix;
    let found = format!(
        "{prefix}: this host reads it; if every host does, declare datasets there with --origin-readers homes, \
         and no root is in the way of their first epoch"
    );
    Finding {
        what: "origin readers",
        ..ok(found)
    }
}
