//! The wiring of the HTTP API: on its socket always, on TCP where it is asked for.

use super::NodeError;
use super::datasets::Datasets;
use super::front::Front;
use crate::api::{Api, ApiServer, Names};
use crate::budgets::Served;
use crate::config::Settings;
use crate::read::ReadPath;
use copperfs_overlay::tls::TlsListener;
use copperfs_overlay::{Failure, ItemPath, Secret};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;

impl Names for ReadPath {
    fn look(&self, path: ItemPath) -> BoxFuture<'static, Result<(), Failure>> {
        let read = self.clone();
        async move { read.attributes_of(&path).await.map(drop) }.boxed()
    }
}

/// Serves what `settings` ask for, until what is given back is dropped.
///
/// # Errors
/// A socket cannot be had, or there is no secret to make certificates from.
pub(super) async fn serve(
    settings: &Settings,
    datasets: &Datasets,
    front: &Front,
) -> Result<Vec<ApiServer>, NodeError> {
    let served = Served::of(settings);
    let api = Api::new(
        datasets.steward.clone(),
        served,
        Arc::new(front.read.clone()),
    );
    let path = &settings.api_socket;
    let local = ApiServer::on_socket(path, api.clone());
    let local = local.map_err(|source| NodeError::Api {
        path: path.clone(),
        source,
    })?;
    let mut servers = vec![local];
    if let Some(address) = settings.api_listen {
        let secret = settings.secret_file.as_ref().ok_or(NodeError::ApiSecret)?;
        let secret = Secret::read_file(secret)?;
        let listener = TlsListener::bind(address, &secret).await?;
        servers.push(ApiServer::on_tls(listener, api));
    }
    Ok(servers)
}
