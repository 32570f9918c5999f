//! The origins that `copperfs doctor` was asked to look at.

use super::{Check, DoctorArgs, Verdict, check};
use crate::config::{Layer, Machine, Source, gather, resolve};
use crate::origin::{Finding, OriginOptions, Origins, Outcome, Retries};

/// As a mount with these flags and variables would see them.
///
/// # Errors
/// The flags or the configuration file cannot be understood.
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let looks = settings.origins.iter().map(|spec| {
        match Origins::open(std::slice::from_ref(spec), &options) {
            Ok(origin) => {
                let findings = runtime.block_on(origin.examine());
                findings.into_iter().map(Check::from).collect()
            }
            Err(error) => {
                let text = error.to_string();
                let (found, fix) = text
                    .split_once("; ")
                    .unwrap_or((&text, "look at its options"));
                vec![check("origin open", Verdict::Fail, found, fix)]
            }
        }
    });
    Ok(looks.collect::<Vec<Vec<Check>>>().concat())
}

impl From<Finding> for Check {
    fn from(finding: Finding) -> Self {
        let verdict = match finding.outcome {
            Outcome::Good => Verdict::Ok,
            Outcome::Poor => Verdict::Warn,
            Outcome::Bad => Verdict::Fail,
        };
        check(finding.what, verdict, finding.found, &finding.fix)
    }
}
