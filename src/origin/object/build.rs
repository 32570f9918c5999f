//! From a URI, options and the environment to a store's client.
//!
//! Precedence: the origin's options over the environment over defaults. Options that the store does not
//! know are refused; unknown variables of the environment are not ours to judge.

use super::http::Connector;
use super::{Names, ObjectOrigin};
use crate::origin::error::{OriginError, redacted};
use crate::origin::options::{OriginOptions, OriginSpec};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig,
};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

/// A store's client for `spec`. Nothing is sent yet.
pub(super) fn connect(
    spec: &OriginSpec,
    options: &OriginOptions,
) -> Result<ObjectOrigin, OriginError> {
    let uri = redacted(&spec.uri);
    let bad_uri = |reason: String| OriginError::Uri {
        uri: uri.clone(),
        reason,
    };
    let url: url::Url = spec
        .uri
        .parse()
        .map_err(|e: url::ParseError| bad_uri(e.to_string()))?;
    let (scheme, prefix) =
        ObjectStoreScheme::parse(&url).map_err(|error| bad_uri(error.to_string()))?;
    let failed = |error: object_store::Error| OriginError::Store {
        uri: uri.clone(),
        reason: error.to_string(),
    };
    let client = client_options(options);
    let retry = retry_config(options);
    let names: Names = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::new()
                .with_url(spec.uri.as_str())
                .with_client_options(client)
                .with_http_connector(Connector)
                .with_retry(retry);
            let keys = settings::<AmazonS3ConfigKey>("aws_", spec, &options.env)?;
            let store = keys
                .into_iter()
                .fold(builder, |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .build()
                .map_err(failed)?;
            Names::paged(Arc::new(store))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::new()
                .with_url(spec.uri.as_str())
                .with_client_options(client)
                .with_http_connector(Connector)
                .with_retry(retry);
            let keys = settings::<GoogleConfigKey>("google_", spec, &options.env)?;
            let store = keys
                .into_iter()
                .fold(builder, |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .build()
                .map_err(failed)?;
            Names::paged(Arc::new(store))
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let builder = MicrosoftAzureBuilder::new()
                .with_url(spec.uri.as_str())
                .with_client_options(client)
                .with_http_connector(Connector)
                .with_retry(retry);
            let keys = settings::<AzureConfigKey>("azure_", spec, &options.env)?;
            let store = keys
                .into_iter()
                .fold(builder, |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .build()
                .map_err(failed)?;
            Names::paged(Arc::new(store))
        }
        ObjectStoreScheme::Http => {
            let builder = HttpBuilder::new()
                .with_url(&url[..url::Position::BeforePath])
                .with_client_options(client.with_allow_http(url.scheme() == "http"))
                .with_http_connector(Connector)
                .with_retry(retry);
            let keys = settings::<ClientConfigKey>("", spec, &BTreeMap::new())?;
            let store = keys
                .into_iter()
                .fold(builder, |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .build()
                .map_err(failed)?;
            let store: Arc<dyn ObjectStore> = Arc::new(store);
            Names::probed(store)
        }
        _ => return Err(bad_uri("this scheme is not supported".to_owned())),
    };
    Ok(ObjectOrigin::new(names, &prefix, &uri, options))
}

/// Environment variables of the store's family, and over them the origin's own options.
fn settings<K: FromStr>(
    family: &str,
    spec: &OriginSpec,
    env: &BTreeMap<String, String>,
) -> Result<Vec<(K, String)>, OriginError> {
    let mut settings = Vec::new();
    for (name, value) in env {
        let name = name.to_ascii_lowercase();
        if let (true, Ok(key)) = (name.starts_with(family), name.parse()) {
            settings.push((key, value.clone()));
        }
    }
    for (name, value) in &spec.options {
        let key = name
            .to_ascii_lowercase()
            .parse()
            .map_err(|_: K::Err| OriginError::Option {
                uri: redacted(&spec.uri),
                key: name.clone(),
            })?;
        settings.push((key, value.clone()));
    }
    Ok(settings)
}

fn client_options(options: &OriginOptions) -> ClientOptions {
    ClientOptions::new()
        // A bound on the whole answer would cut large files on slow links; silence is what counts.
        .with_timeout_disabled()
        .with_connect_timeout(options.retries.connect_timeout)
        .with_read_timeout(options.retries.read_timeout)
}

fn retry_config(options: &OriginOptions) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: options.retries.backoff,
            max_backoff: options.retries.backoff_max,
            base: 2.0,
        },
        max_retries: options.retries.max,
        retry_timeout: options.retries.timeout,
    }
}
