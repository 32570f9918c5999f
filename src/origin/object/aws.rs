//! The credentials of an S3 client that has no keys in its options or in the environment. They are found where Amazon's
//! tools find them: `plan` has the order.
//!
//! Credentials are kept until shortly before they expire. Then one request asks for others while the rest goes on with
//! the present ones, so no reader waits or fails unless they cannot be renewed until they expire. If the store refuses
//! them, the files are read again: they may have been replaced.
//!
//! The services of containers and machines are asked by `object_store`, which keeps their answers itself.

mod command;
mod error;
mod files;
mod ini;
mod plan;
mod sso;
mod sts;
mod web;

pub(super) use error::CredentialError;

use super::chain::{root_cause, status};
use crate::origin::options::Retries;
use chrono::DateTime;
use files::Files;
use futures_util::future::BoxFuture;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key, AwsCredential};
use object_store::{ClientOptions, CredentialProvider};
use parking_lot::Mutex;
use plan::{Base, Plan, Role, Wish};
use sso::Portal;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use sts::Sts;
use web::{Web, domain};

/// The option that names a profile. It is not one of `object_store`.
pub(super) const PROFILE_OPTIONS: [&str; 2] = ["profile", "aws_profile"];

/// Credentials are renewed this long before they expire, or for the last quarter of a shorter life.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// The pause after a renewal that failed, while the present credentials last.
const RENEW_AGAIN: Duration = Duration::from_secs(10);
/// The time that one reader spends on a renewal while the present credentials last.
const RENEWAL_MAX: Duration = Duration::from_secs(10);
/// The files are read again at most this often because the store refuses requests. It may refuse them for ever.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Credentials, and the time at which they expire.
#[derive(Clone)]
struct Issued {
    credential: Arc<AwsCredential>,
    expires: Option<SystemTime>,
}

/// The settings of a client: the options of the origin over the environment.
pub(super) type Keys = Vec<(Key, String)>;

/// See the module.
pub(super) struct AwsCredentials {
    wish: Wish,
    variables: BTreeMap<String, String>,
    region: String,
    sts_endpoint: Option<String>,
    web: Web,
    service: Arc<dyn CredentialProvider<Credential = AwsCredential>>,
    /// Locked for an instant, never across an await.
    state: Mutex<State>,
    /// One search at a time. Taken before `state`.
    searching: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    /// Counts the credentials that differed from those before.
    generation: u64,
    /// The last search that failed.
    failed: Option<(Instant, CredentialError)>,
    /// When the files were last read because the store refused a request.
    looked: Option<Instant>,
}

#[derive(Clone)]
enum Held {
    Issued {
        issued: Issued,
        /// When to look for others.
        renew: Option<SystemTime>,
    },
    /// The service's, which are not kept here, and the other places that have none.
    Service { looked: Arc<str> },
}

/// How a request gets its credentials.
enum Step {
    Use(Arc<AwsCredential>),
    Renew(Arc<AwsCredential>),
    Search,
    AskService(Arc<str>),
}

impl AwsCredentials {
    /// The credentials of a client with the settings `keys`, if they hold none. Adds the region and the endpoint of the
    /// profile to `keys`, if they name no others. `profile` is the one that the origin's options name, and `client` a
    /// builder without settings, whose client options are `options`.
    pub(super) fn new(
        keys: &mut Keys,
        profile: Option<&str>,
        variables: &BTreeMap<String, String>,
        client: AmazonS3Builder,
        (options, retries): (ClientOptions, Retries),
    ) -> object_store::Result<Option<Self>> {
        let files = Files::read(variables, own_user());
        let profile = named_profile(profile, variables);
        let name = profile.as_ref().map_or("default", |(name, _)| name);
        add_settings(keys, &files, name);
        let is_set = |key: Key| keys.iter().any(|(known, _)| *known == key);
        if is_set(Key::AccessKeyId) || is_set(Key::SecretAccessKey) {
            return Ok(None);
        }
        let sts_endpoint = last(keys, &Key::StsEndpoint)
            .or_else(|| variables.get("AWS_ENDPOINT_URL").map(String::as_str))
            .or_else(|| files.endpoint(name, "sts"));
        let of_service = keys.iter().filter(|(key, _)| is_of_service(key)).cloned();
        let client = of_service.fold(client, |client, (key, value)| {
            client.with_config(key, value)
        });
        let options = keys
            .iter()
            .fold(options, |options, (key, value)| match key {
                Key::Client(key) => options.with_config(*key, value),
                _ => options,
            });
        Ok(Some(Self {
            variables: variables.clone(),
            region: region(keys).unwrap_or("us-east-1").to_owned(),
            sts_endpoint: sts_endpoint.map(ToOwned::to_owned),
            web: Web::new(&options, retries)?,
            // The client's bucket is not used.
            service: Arc::clone(client.with_bucket_name("none").build()?.credentials()),
            state: Mutex::default(),
            searching: tokio::sync::Mutex::default(),
            wish: Wish {
                web_identity: web_identity(keys),
                environment: environment(variables),
                // As `object_store` decides.
                in_container: is_set(Key::ContainerCredentialsRelativeUri)
                    || is_set(Key::ContainerCredentialsFullUri)
                        && is_set(Key::ContainerAuthorizationTokenFile),
                profile,
            },
        }))
    }

    async fn present(&self) -> Result<Arc<AwsCredential>, CredentialError> {
        let asked = Instant::now();
        let looked = match self.step(SystemTime::now()) {
            Step::Use(credential) => return Ok(credential),
            Step::AskService(looked) => looked,
            Step::Renew(present) => {
                if let Ok(_turn) = self.searching.try_lock() {
                    self.renew_early().await;
                }
                match self.step(SystemTime::now()) {
                    Step::Use(credential) | Step::Renew(credential) => return Ok(credential),
                    Step::Search => return Ok(present),
                    Step::AskService(looked) => looked,
                }
            }
            Step::Search => {
                let _turn = self.searching.lock().await;
                match self.step(SystemTime::now()) {
                    Step::Use(credential) | Step::Renew(credential) => return Ok(credential),
                    Step::AskService(looked) => looked,
                    Step::Search => {
                        // Requests that waited for this search do not repeat it one after another.
                        if let Some((at, error)) = &self.state.lock().failed
                            && *at >= asked
                        {
                            return Err(error.clone());
                        }
                        match self.search().await? {
                            Held::Issued { issued, .. } => return Ok(issued.credential),
                            Held::Service { looked } => looked,
                        }
                    }
                }
            }
        };
        self.ask_service(&looked).await
    }

    /// How a request at `now` gets its credentials.
    fn step(&self, now: SystemTime) -> Step {
        match &self.state.lock().held {
            None => Step::Search,
            Some(Held::Service { looked }) => Step::AskService(Arc::clone(looked)),
            Some(Held::Issued { issued, renew }) => {
                let credential = Arc::clone(&issued.credential);
                let is_over = |end: &Option<SystemTime>| end.is_some_and(|end| end <= now);
                match (is_over(&issued.expires), is_over(renew)) {
                    (true, _) => Step::Search,
                    (false, true) => Step::Renew(credential),
                    (false, false) => Step::Use(credential),
                }
            }
        }
    }

    /// Looks for other credentials while the present ones last.
    async fn renew_early(&self) {
        let error = match tokio::time::timeout(RENEWAL_MAX, self.search()).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer within {RENEWAL_MAX:?}"),
        };
        tracing::warn!(error, "the AWS credentials are not renewed yet");
        if let Some(Held::Issued { renew, .. }) = &mut self.state.lock().held {
            *renew = Some(SystemTime::now() + RENEW_AGAIN);
        }
    }

    /// Finds credentials and keeps them. The caller holds `searching`.
    async fn search(&self) -> Result<Held, CredentialError> {
        let found = self.found().await;
        let mut state = self.state.lock();
        match found {
            Ok(held) => {
                if state
                    .held
                    .as_ref()
                    .is_some_and(|before| !held.is_same(before))
                {
                    state.generation += 1;
                }
                state.failed = None;
                state.held = Some(held.clone());
                Ok(held)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn found(&self) -> Result<Held, CredentialError> {
        let variables = self.variables.clone();
        // Home directories may lie on storage that hangs.
        let reading = tokio::task::spawn_blocking(move || Files::read(&variables, own_user()));
        let files = reading.await.unwrap_or_default();
        let Plan { base, roles } = Plan::new(&self.wish, &files)?;
        let mut issued = match base {
            Base::Service { looked } => {
                let looked = looked.into();
                if roles.is_empty() {
                    return Ok(Held::Service { looked });
                }
                let credential = self.ask_service(&looked).await?;
                Issued::lasting(credential)
            }
            Base::Keys(credential) => Issued::lasting(credential),
            Base::Command { profile, command } => {
                command::run(&profile, &command, &self.variables).await?
            }
            Base::WebIdentity { token, role } => {
                let (region, endpoint) = self.sts(&role);
                let sts = Sts {
                    web: &self.web,
                    endpoint: &endpoint,
                    region: &region,
                };
                sts.assume_with_token(&role, &token).await?
            }
            Base::SingleSignOn(session) => {
                let portal = Portal {
                    web: &self.web,
                    variables: &self.variables,
                    cache: files.sso_cache.as_deref().unwrap_or("/".as_ref()),
                };
                portal.credentials(&session).await?
            }
        };
        for role in &roles {
            let (region, endpoint) = self.sts(role);
            let sts = Sts {
                web: &self.web,
                endpoint: &endpoint,
                region: &region,
            };
            issued = sts.assume(role, &issued.credential).await?;
        }
        Ok(Held::issued(issued, SystemTime::now()))
    }

    /// The region and the address of the service for `role`.
    fn sts(&self, role: &Role) -> (String, String) {
        let region = role.region.as_ref().unwrap_or(&self.region);
        let usual = || format!("https://sts.{region}.{}", domain(region));
        let endpoint = self.sts_endpoint.clone().unwrap_or_else(usual);
        (region.clone(), endpoint)
    }

    /// The credentials of the container or the machine. The places in `looked` have none.
    async fn ask_service(&self, looked: &str) -> Result<Arc<AwsCredential>, CredentialError> {
        let error = match self.service.get_credential().await {
            Ok(credential) => return Ok(credential),
            Err(error) => error,
        };
        // Another place may have credentials by the next request.
        self.state.lock().held = None;
        let answer = match status(&error) {
            Some(status) => format!("answered {status}"),
            None => format!("does not answer ({})", root_cause(&error)),
        };
        let service = match self.wish.in_container {
            true => "the container's service for credentials",
            false => "the cloud's metadata service",
        };
        let text = format!(
            "no AWS credentials: AWS_ACCESS_KEY_ID is not set, {looked}, and {service} {answer}"
        );
        let hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE to a profile of \
                    ~/.aws/config, or AWS_SKIP_SIGNATURE=true for a public bucket";
        Err(match status(&error) {
            // The service exists, but has no credentials for this machine. A retry does not help.
            Some(400..500) => CredentialError::refused(text, hint),
            _ => CredentialError::unavailable(text, hint),
        })
    }

    /// Counts the credentials so far: for [`AwsCredentials::has_others`].
    pub(super) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Whether there are other credentials than those of `generation`, which the store has refused. Looks for them, but
    /// not often.
    pub(super) async fn has_others(&self, generation: u64) -> bool {
        let _turn = self.searching.lock().await;
        {
            let mut state = self.state.lock();
            if state.generation != generation {
                return true;
            }
            let is_recent = |at: Instant| at.elapsed() < LOOK_AGAIN;
            let is_own = matches!(state.held, Some(Held::Issued { .. }));
            if !is_own || state.looked.is_some_and(is_recent) {
                return false;
            }
            state.looked = Some(Instant::now());
        }
        self.search().await.is_ok() && self.generation() != generation
    }
}

impl CredentialProvider for AwsCredentials {
    type Credential = AwsCredential;

    // The desugared form of an async trait method, so that no macro crate is needed for it.
    fn get_credential<'a, 'b>(&'a self) -> BoxFuture<'b, object_store::Result<Arc<AwsCredential>>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let present = self.present().await;
            present.map_err(|error| object_store::Error::Generic {
                store: "S3",
                source: Box::new(error),
            })
        })
    }
}

/// Shows no credentials.
impl std::fmt::Debug for AwsCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AwsCredentials").finish_non_exhaustive()
    }
}

impl Held {
    /// `issued`, obtained at `now`.
    fn issued(issued: Issued, now: SystemTime) -> Self {
        let renew = issued.expires.map(|end| {
            let life = end.duration_since(now).unwrap_or_default();
            end - RENEW_BEFORE.min(life / 4)
        });
        Self::Issued { issued, renew }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Issued { issued, .. }, Self::Issued { issued: other, .. }) => {
                issued.credential == other.credential
            }
            _ => false,
        }
    }
}

impl Issued {
    fn lasting(credential: Arc<AwsCredential>) -> Self {
        Self {
            credential,
            expires: None,
        }
    }
}

/// Reads a date of Amazon's services and tools: RFC 3339, or with `UTC` at its end in files of older tools.
fn date(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    let text = match text.strip_suffix("UTC") {
        Some(rest) => format!("{rest}Z"),
        None => text.to_owned(),
    };
    DateTime::parse_from_rfc3339(&text).ok().map(Into::into)
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The last value of `wanted`, which counts.
fn last<'a>(keys: &'a Keys, wanted: &Key) -> Option<&'a str> {
    let found = keys.iter().rev().find(|(key, _)| key == wanted);
    found
        .map(|(_, value)| value.as_str())
        .filter(|value| !value.is_empty())
}

fn region(keys: &Keys) -> Option<&str> {
    last(keys, &Key::Region).or_else(|| last(keys, &Key::DefaultRegion))
}

/// The profile that the options or the environment name, and the setting that names it.
fn named_profile(
    option: Option<&str>,
    variables: &BTreeMap<String, String>,
) -> Option<(String, &'static str)> {
    let option = option.map(|name| (name.to_owned(), "the option profile"));
    option.or_else(|| {
        let names = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"].into_iter();
        let mut set = names.filter_map(|name| Some((variables.get(name)?.clone(), name)));
        set.find(|(profile, _)| !profile.is_empty())
    })
}

/// Adds the region and the endpoint of the profile `name` to `keys`, if they have none.
fn add_settings(keys: &mut Keys, files: &Files, name: &str) {
    let profile = files.profile(name);
    if region(keys).is_none()
        && let Some(region) = profile.as_ref().and_then(|profile| profile.get("region"))
    {
        keys.push((Key::Region, region.to_owned()));
    }
    let has_endpoint = [Key::Endpoint, Key::S3Endpoint]
        .iter()
        .any(|key| last(keys, key).is_some());
    if !has_endpoint && let Some(endpoint) = files.endpoint(name, "s3") {
        keys.push((Key::Endpoint, endpoint.to_owned()));
    }
}

/// The role for the holder of a token that the settings name.
fn web_identity(keys: &Keys) -> Option<(PathBuf, Role)> {
    let text = |key| last(keys, &key).map(ToOwned::to_owned);
    let role = Role {
        arn: text(Key::RoleArn)?,
        session: text(Key::RoleSessionName),
        ..Role::default()
    };
    Some((text(Key::WebIdentityTokenFile)?.into(), role))
}

/// The keys of the environment.
fn environment(variables: &BTreeMap<String, String>) -> Option<Arc<AwsCredential>> {
    let set = |name: &str| variables.get(name).map(String::as_str);
    let (id, secret) = (set("AWS_ACCESS_KEY_ID")?, set("AWS_SECRET_ACCESS_KEY")?);
    plan::credential(id, secret, set("AWS_SESSION_TOKEN"))
}

/// Whether `key` is a setting of the client that asks the services of containers and machines.
fn is_of_service(key: &Key) -> bool {
    matches!(
        key,
        Key::ContainerCredentialsRelativeUri
            | Key::ContainerCredentialsFullUri
            | Key::ContainerAuthorizationTokenFile
            | Key::MetadataEndpoint
            | Key::ImdsV1Fallback
            | Key::Client(_)
    )
}

#[cfg(test)]
mod tests;
