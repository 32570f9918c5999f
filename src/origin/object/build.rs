//! Builds a store's client from a URI, options and the environment, and the store's canonical address for
//! versions.
//!
//! Precedence: the origin's options over the environment over defaults. Options that the store does not
//! know are refused; unknown variables of the environment are ignored, because they may have other users.
//! [`super::aws`] adds the settings of a profile.

use super::aws::{AwsCredentials, PROFILE_OPTIONS};
use super::credentials::CredentialService;
use super::gate::Gate;
use super::http::Connector;
use super::{Client, Connection, ListingMode, permissions};
use crate::origin::error::{OriginError, redacted};
use crate::origin::options::{OriginOptions, OriginSpec};
use object_store::aws::AmazonS3Builder;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig,
};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

/// A `$builder` without the settings of a store: the builders have no trait in common.
macro_rules! client {
    ($builder:ty, $options:expr, $gate:expr) => {
        <$builder>::new()
            .with_client_options(client_options($options))
            .with_http_connector(Connector {
                gate: Arc::clone($gate),
            })
            .with_retry(retry_config($options))
    };
}

/// A `$builder` for `$url` with `$keys`.
macro_rules! configured {
    ($builder:ty, $url:expr, $keys:expr, $options:expr, $gate:expr) => {
        $keys.into_iter().fold(
            client!($builder, $options, $gate).with_url($url),
            |builder, (key, value)| builder.with_config(key, value),
        )
    };
}

/// A store's client for `spec`, behind `gate`. Sends nothing yet.
pub(super) fn connect(
    spec: &OriginSpec,
    options: &OriginOptions,
    gate: Arc<Gate>,
) -> Result<Connection, OriginError> {
    let uri = redacted(&spec.uri);
    let bad_uri = |reason: &dyn Display| OriginError::Uri {
        uri: uri.clone(),
        reason: reason.to_string(),
    };
    let url = url::Url::parse(&spec.uri).map_err(|e| bad_uri(&e))?;
    let (scheme, prefix) = ObjectStoreScheme::parse(&url).map_err(|e| bad_uri(&e))?;
    let url_text = spec.uri.as_str();
    let mut address = vec![canonical(&uri)];
    let env = &options.env;
    let mut aws = None;
    let (store, credentials) = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let (builder, found) = amazon(spec, options, &gate, &mut address)?;
            aws = found;
            let store = builder.build().map(Arc::new);
            (store.map(paged), CredentialService::default())
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let keys = settings::<GoogleConfigKey>("google_", spec, env)?;
            address.extend(addresses(&keys));
            let store = configured!(GoogleCloudStorageBuilder, url_text, keys, options, &gate);
            let store = store.build().map(Arc::new);
            (store.map(paged), CredentialService::google())
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let keys = settings::<AzureConfigKey>("azure_", spec, env)?;
            address.extend(addresses(&keys));
            let service = CredentialService::azure(&keys);
            let store = configured!(MicrosoftAzureBuilder, url_text, keys, options, &gate);
            let store = store.build().map(Arc::new);
            (store.map(paged), service)
        }
        ObjectStoreScheme::Http => {
            // An http:// URI is permission enough.
            let allowed = (ClientConfigKey::AllowHttp, "true".to_owned());
            let mut keys = vec![allowed];
            keys.extend(settings("", spec, &BTreeMap::new())?);
            let server = &url[..url::Position::BeforePath];
            let store = configured!(HttpBuilder, server, keys, options, &gate);
            let store = store.build().map(Arc::new);
            let store =
                store.map(|store| (store as Arc<dyn ObjectStore>, ListingMode::Unsupported));
            (store, CredentialService::default())
        }
        _ => return Err(bad_uri(&"this scheme is not supported")),
    };
    let (store, listing) = store.map_err(|error| unusable(spec, &error))?;
    let lists = listing.is_supported();
    let client = Client {
        store,
        listing,
        credentials,
        aws,
    };
    Ok(Connection {
        client: RwLock::new(Arc::new(client)),
        lists,
        gate,
        prefix,
        label: uri,
        address: address.join(" "),
    })
}

fn paged<S: ObjectStore + PaginatedListStore>(
    store: Arc<S>,
) -> (Arc<dyn ObjectStore>, ListingMode) {
    let pages = Arc::clone(&store) as Arc<dyn PaginatedListStore>;
    (store, ListingMode::Pages(pages))
}

/// Settings that select the server and the account if the URI does not.
const ADDRESSES: [&str; 7] = [
    "aws_endpoint",
    "aws_endpoint_url_s3",
    "azure_storage_account_name",
    "azure_storage_endpoint",
    "azure_storage_use_emulator",
    "azure_use_fabric_endpoint",
    "google_base_url",
];

/// The entries of `settings` that are addresses, sorted by name. The last value of each name counts.
fn addresses<K: AsRef<str>>(settings: &[(K, String)]) -> Vec<String> {
    let known: BTreeMap<&str, &str> = settings
        .iter()
        .map(|(key, value)| (key.as_ref(), value.as_str()))
        .filter(|(key, _)| ADDRESSES.contains(key))
        .collect();
    known
        .into_iter()
        .map(|(key, value)| format!("{key}={}", canonical(&redacted(value))))
        .collect()
}

/// The canonical form of a URI, without credentials: lower case host, no default port, no repeated or
/// trailing slashes. Any other text keeps its form, except for trailing slashes.
fn canonical(uri: &str) -> String {
    let Ok(url) = uri.parse::<url::Url>() else {
        return uri.trim_end_matches('/').to_owned();
    };
    let segments = url.path().split('/').filter(|segment| !segment.is_empty());
    let path: Vec<&str> = segments.collect();
    format!("{}/{}", &url[..url::Position::BeforePath], path.join("/"))
}

/// Why a client cannot be built. Parts of a key that the error quotes are left out.
fn reason(error: &object_store::Error) -> String {
    let text = error.to_string();
    let text = match text.split_once(" error: ") {
        Some((generic, cause)) if generic.starts_with("Generic ") => cause,
        _ => &text,
    };
    let reason = match text {
        "Missing SecretAccessKey" => "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not",
        "Missing AccessKeyId" => "AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID is not",
        "Account must be specified" => {
            "no account is named: set AZURE_STORAGE_ACCOUNT_NAME or the option account_name"
        }
        _ if text.starts_with("Invalid Access Key") => {
            "the access key is not base64, as the keys of an Azure account are"
        }
        _ => text,
    };
    reason.to_owned()
}

/// Variables whose name differs from their key, as in the `from_env` of `object_store`.
const ALIASES: [(&str, &str); 2] = [
    ("SERVICE_ACCOUNT", "google_service_account"),
    ("IDENTITY_ENDPOINT", "azure_msi_endpoint"),
];

/// Environment variables of the store's family, and then the origin's own options, which override them.
fn settings<K: FromStr>(
    family: &str,
    spec: &OriginSpec,
    env: &BTreeMap<String, String>,
) -> Result<Vec<(K, String)>, OriginError> {
    let set = env.iter().filter(|(_, value)| !value.is_empty());
    let of_environment = set.filter_map(|(name, value)| {
        let alias = ALIASES.iter().find(|(alias, _)| alias == name);
        let name = alias.map_or_else(|| name.to_ascii_lowercase(), |(_, key)| (*key).to_owned());
        let key = name.starts_with(family).then(|| name.parse().ok())??;
        Some(Ok((key, value.clone())))
    });
    let own = spec.options.iter();
    let own = own.filter(|(name, _)| !permissions::OPTIONS.contains(&name.as_str()));
    let own = own.filter(|(name, _)| family != "aws_" || !is_profile(name));
    let own = own.map(|(name, value)| {
        let key = name.to_ascii_lowercase().parse();
        let key = key.map_err(|_unknown| OriginError::Option {
            uri: redacted(&spec.uri),
            key: name.clone(),
        })?;
        Ok((key, value.clone()))
    });
    of_environment.chain(own).collect()
}

/// The builder of the S3 client, and its credentials if the settings hold none. Adds the settings that select the server
/// to `address`. A profile that the origin's options name overrides credentials of the environment.
fn amazon(
    spec: &OriginSpec,
    options: &OriginOptions,
    gate: &Arc<Gate>,
    address: &mut Vec<String>,
) -> Result<(AmazonS3Builder, Option<Arc<AwsCredentials>>), OriginError> {
    const CREDENTIALS: [&str; 5] = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_TOKEN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    ];
    let mut env = options.env.clone();
    let profile = spec.options.iter().find(|(name, _)| is_profile(name));
    let profile = profile.map(|(_, profile)| profile.as_str());
    if profile.is_some() {
        env.retain(|name, _| !CREDENTIALS.contains(&name.as_str()));
    }
    let mut keys = settings("aws_", spec, &env)?;
    let client = client!(AmazonS3Builder, options, gate);
    let web = (client_options(options), options.retries);
    let found = AwsCredentials::new(&mut keys, profile, &options.env, client, web);
    let found = found.map_err(|error| unusable(spec, &error))?;
    address.extend(addresses(&keys));
    let builder = configured!(AmazonS3Builder, spec.uri.as_str(), keys, options, gate);
    Ok(match found.map(Arc::new) {
        Some(found) => (
            builder.with_credentials(Arc::clone(&found) as _),
            Some(found),
        ),
        None => (builder, None),
    })
}

/// The error for a client that cannot be built.
fn unusable(spec: &OriginSpec, error: &object_store::Error) -> OriginError {
    OriginError::Store {
        uri: redacted(&spec.uri),
        reason: reason(error),
    }
}

fn is_profile(option: &str) -> bool {
    let mut names = PROFILE_OPTIONS.iter();
    names.any(|name| option.eq_ignore_ascii_case(name))
}

fn client_options(options: &OriginOptions) -> ClientOptions {
    ClientOptions::new()
        // A timeout of the whole answer would cut off large files on slow links; only silence counts.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::ObjectOrigin;
    use copperfs_overlay::ItemPath;
    use object_store::aws::AmazonS3ConfigKey;

    fn spec(uri: &str, options: &[(&str, &str)]) -> OriginSpec {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        OriginSpec {
            prefix: ItemPath::root(),
            uri: uri.to_owned(),
            options: options.iter().map(text).collect(),
        }
    }

    #[test]
    fn every_scheme_makes_a_client() {
        let account = [("account_name", "acc"), ("access_key", "c2VjcmV0")];
        for (uri, options) in [
            (
                "s3://bucket/a/b",
                &[("region", "eu-west-1"), ("skip_signature", "true")][..],
            ),
            ("az://container/a", &account[..]),
            ("abfss://fs@acc.dfs.core.windows.net/a", &account[1..]),
            ("gs://bucket/a", &[("skip_signature", "true")][..]),
            ("http://host/base", &[][..]),
            ("https://host:1/base", &[("timeout", "3s")][..]),
        ] {
            connect(&spec(uri, options), &OriginOptions::default(), Gate::new(1))
                .unwrap_or_else(|error| panic!("{uri}: {error}"));
        }
    }

    #[test]
    fn errors_name_missing_settings_and_no_key() {
        for (options, reason) in [
            (&[][..], "no account is named"),
            (
                &[("account_name", "acc"), ("access_key", "not~base64")][..],
                "is not base64",
            ),
        ] {
            let error = connect(
                &spec("az://box/a", options),
                &OriginOptions::default(),
                Gate::new(1),
            );
            let error = error.err().expect("no client").to_string();
            assert!(error.contains(reason) && !error.contains("126"), "{error}");
            assert!(error.contains("az://box/a: "), "{error}");
        }
        for (one, missing) in [
            ("access_key_id", "AWS_SECRET_ACCESS_KEY is not"),
            ("secret_access_key", "AWS_ACCESS_KEY_ID is not"),
        ] {
            let half = spec("s3://bucket", &[(one, "half of a pair")]);
            let error = connect(&half, &OriginOptions::default(), Gate::new(1));
            let error = error.err().expect("no client").to_string();
            assert!(error.contains(missing), "{error}");
            assert!(!error.contains("half of a pair"), "{error}");
        }
    }

    #[test]
    fn addresses_have_a_canonical_form() {
        for (one, other) in [
            ("HTTP://Host:80/v1//", "http://host/v1"),
            ("s3://bucket/a/", "s3://bucket//a"),
            ("https://host/a/./b", "https://host/a/b"),
        ] {
            assert_eq!(canonical(one), canonical(other));
        }
        assert_ne!(canonical("http://host/v1"), canonical("http://host/v2"));
        let identity = |options: &[(&str, &str)], variables: &[(&str, &str)]| {
            let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let env = variables.iter().map(text).collect();
            let keys =
                settings::<AmazonS3ConfigKey>("aws_", &spec("s3://b", options), &env).unwrap();
            addresses(&keys)
        };
        let one = identity(&[("endpoint", "http://one:9000/")], &[("AWS_REGION", "x")]);
        assert_eq!(one, ["aws_endpoint=http://one:9000/"]);
        assert_eq!(identity(&[], &[("AWS_ENDPOINT", "http://ONE:9000")]), one);
        assert!(identity(&[], &[]).is_empty());
        let secret = [("endpoint", "http://u:p@two"), ("secret_access_key", "p")];
        let two = identity(&secret, &[]).join(" ");
        assert!(two.contains("//two/") && !two.contains("p@"), "{two}");
    }

    #[test]
    fn options_override_the_environment_and_foreign_variables_are_ignored() {
        let variables = [
            ("AWS_REGION", "one"),
            ("AWS_NOT_A_KEY", "x"),
            ("GOOGLE_BUCKET", "y"),
            ("PATH", "/bin"),
        ];
        let env = variables.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let s3 = spec("s3://b", &[("Region", "two")]);
        let found = settings::<AmazonS3ConfigKey>("aws_", &s3, &env.into()).unwrap();
        let values: Vec<&str> = found.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["one", "two"]);
        let env = BTreeMap::from([("SERVICE_ACCOUNT".to_owned(), "file".to_owned())]);
        let gcs = spec("gs://b", &[]);
        assert_eq!(
            settings::<GoogleConfigKey>("google_", &gcs, &env)
                .unwrap()
                .len(),
            1
        );
        let env = BTreeMap::from([("IDENTITY_ENDPOINT".to_owned(), "url".to_owned())]);
        assert_eq!(
            settings::<AzureConfigKey>("azure_", &gcs, &env)
                .unwrap()
                .len(),
            1
        );
    }

    /// A reload reads files of credentials again, and does not lead to another store.
    #[test]
    fn another_client_is_for_the_same_store() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let account = r#"{"gcs_base_url": "http://localhost:1", "disable_oauth": true,
            "client_email": "", "private_key": "", "private_key_id": ""}"#;
        std::fs::write(file.path(), account).unwrap();
        let path = file.path().display().to_string();
        let (gcs, options) = (
            spec("gs://b", &[("service_account", &path)]),
            OriginOptions::default(),
        );
        let origin = ObjectOrigin::connect(&gcs, &options).unwrap();
        origin.again(&gcs, &options).unwrap();
        std::fs::write(file.path(), "torn").unwrap();
        assert!(origin.again(&gcs, &options).is_err());
        let s3 = |endpoint| {
            spec(
                "s3://b",
                &[("endpoint", endpoint), ("skip_signature", "true")],
            )
        };
        let origin = ObjectOrigin::connect(&s3("http://one"), &options).unwrap();
        origin.again(&s3("http://one/"), &options).unwrap();
        let error = origin.again(&s3("http://two"), &options).err().unwrap();
        assert!(error.to_string().contains("another store"), "{error}");
    }
}
