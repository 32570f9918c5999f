//! Other credentials for the stores of a running node.

use super::{Mount, Origins};
use crate::origin::options::{OriginOptions, OriginSpec};
use crate::origin::{ObjectOrigin, OriginError};

/// New clients of the stores, which are used after [`Renewal::apply`].
pub struct Renewal(Vec<(ObjectOrigin, ObjectOrigin)>);

impl Origins {
    /// Makes a new client for every object store, with the options of `specs` and the variables of `options`, and reads
    /// files of credentials again. Sends nothing yet.
    ///
    /// # Errors
    /// The options cannot be used, or lead to another store.
    pub fn renew(
        &self,
        specs: &[OriginSpec],
        options: &OriginOptions,
    ) -> Result<Renewal, OriginError> {
        let stores = self.shared.mounts.iter();
        let stores =
            stores.filter_map(|Mount { prefix, store, .. }| Some((prefix, store.as_ref()?)));
        let renewed = stores.filter_map(|(prefix, store)| {
            let spec = specs.iter().find(|spec| spec.prefix == *prefix)?;
            Some(
                store
                    .again(spec, options)
                    .map(|again| (store.clone(), again)),
            )
        });
        renewed.collect::<Result<_, _>>().map(Renewal)
    }
}

impl Renewal {
    /// Sends one request with each new client, to check that its store accepts the credentials.
    ///
    /// # Errors
    /// The first store that does not, after its retries.
    pub async fn check(&self) -> Result<(), OriginError> {
        for (_, again) in &self.0 {
            again.check().await?;
        }
        Ok(())
    }

    /// Uses the new clients for further requests. Requests in progress end with the clients that they began with.
    pub fn apply(&self) {
        for (store, again) in &self.0 {
            store.adopt(again);
        }
    }

    /// The names of the stores, without credentials.
    pub fn stores(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(store, _)| store.label())
    }
}
