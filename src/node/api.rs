//! The wiring of the HTTP API: on its socket always, on TCP where it is asked for.

use super::NodeError;
use super::datasets::Datasets;
use crate::api::{Api, ApiServer};
use crate::config::Settings;
use crate::config::datasets::Served;
use copperfs_overlay::Secret;
use copperfs_overlay::tls::TlsListener;

/// Serves what `settings` ask for, until what is given back is dropped.
///
/// # Errors
/// A socket cannot be had, or there is no secret to make certificates from.
pub(super) async fn serve(
    settings: &Settings,
    datasets: &Datasets,
) -> Result<Vec<ApiServer>, NodeError> {
    let api = Api::new(datasets.steward.clone(), Served::of(settings));
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
