//! Decides where credentials come from. Pure: the files were read before.
//!
//! The order is that of Amazon's tools: keys of the environment, which do not come here; a web identity of the
//! environment; the profile (a role, then single sign-on, keys of the credentials file, a command, keys of the
//! configuration file); at last the service of the container or the machine.

use super::error::CredentialError;
use super::files::{Files, Profile, value};
use crate::nearest::nearest;
use object_store::aws::AwsCredential;
use std::path::PathBuf;
use std::sync::Arc;

/// The choices of the user, beyond the files.
#[derive(Clone, Default)]
pub(super) struct Wish {
    /// A profile, and the setting that names it. `None`: `default`, if there is one.
    pub(super) profile: Option<(String, &'static str)>,
    /// A role for the holder of a token, which the settings name.
    pub(super) web_identity: Option<(PathBuf, Role)>,
    /// Keys of the environment, for roles with `credential_source = Environment`.
    pub(super) environment: Option<Arc<AwsCredential>>,
    /// Whether the service is that of a container.
    pub(super) in_container: bool,
}

/// Where credentials come from: with those of `base` the first role is assumed, with those of it the next one.
pub(super) struct Plan {
    pub(super) base: Base,
    pub(super) roles: Vec<Role>,
}

pub(super) enum Base {
    /// Keys that do not expire.
    Keys(Arc<AwsCredential>),
    /// The output of a command.
    Command { profile: String, command: String },
    /// A role for the holder of the token in a file, which is read for each request.
    WebIdentity { token: PathBuf, role: Role },
    /// A session of `aws sso login`.
    SingleSignOn(SingleSignOn),
    /// The service of the container or the machine. `looked` tells which other places have no credentials.
    Service { looked: String },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) arn: String,
    /// The name under which its use is logged.
    pub(super) session: Option<String>,
    pub(super) external_id: Option<String>,
    pub(super) duration_seconds: Option<String>,
    /// The region of its profile.
    pub(super) region: Option<String>,
}

/// See [`Base::SingleSignOn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SingleSignOn {
    pub(super) profile: String,
    /// Names the file of the token: the session, or for older profiles the URL where it starts.
    pub(super) cache_key: String,
    pub(super) region: String,
    pub(super) account: String,
    pub(super) role: String,
}

/// Profiles that one may lead to, by `source_profile`.
const PROFILES_MAX: usize = 8;

impl Plan {
    /// # Errors
    /// A profile is named and missing, or incomplete.
    pub(super) fn new(wish: &Wish, files: &Files) -> Result<Self, CredentialError> {
        if let Some((token, role)) = wish.web_identity.clone() {
            return Ok(Self::of(Base::WebIdentity { token, role }));
        }
        let (name, named_by) = match &wish.profile {
            Some((name, by)) => (name.as_str(), Some(*by)),
            None => ("default", None),
        };
        let service = |looked: String| Ok(Self::of(Base::Service { looked }));
        match (files.profile(name), named_by) {
            (Some(profile), _) => match Self::of_profile(profile, wish, files)? {
                Some(plan) => Ok(plan),
                None => service(files.places(name)),
            },
            (None, None) => service(files.places(name)),
            (None, Some(named_by)) => Err(missing(name, named_by, files)),
        }
    }

    fn of(base: Base) -> Self {
        Self {
            base,
            roles: Vec::new(),
        }
    }

    /// `None`: the profile has no credentials.
    fn of_profile(
        first: Profile<'_>,
        wish: &Wish,
        files: &Files,
    ) -> Result<Option<Self>, CredentialError> {
        let mut roles = Vec::new();
        let mut seen = vec![first.name.clone()];
        let mut profile = first;
        let base = loop {
            let next = match profile.get("role_arn") {
                Some(arn) => {
                    let role = role(&profile, arn);
                    if let Some(token) = profile.get("web_identity_token_file") {
                        let token = PathBuf::from(token);
                        break Base::WebIdentity { token, role };
                    }
                    refuse_code(&profile)?;
                    roles.push(role);
                    source(&profile, wish)?
                }
                None => match own(&profile, files)? {
                    Some(base) => break base,
                    None if roles.is_empty() => return Ok(None),
                    None => return Err(incomplete(&profile, "it has no credentials")),
                },
            };
            let name = match next {
                Next::Base(base) => break base,
                Next::Profile(name) => name,
            };
            let Some(source) = files.profile(&name) else {
                return Err(missing(&name, "source_profile", files));
            };
            if seen.contains(&name) || seen.len() >= PROFILES_MAX {
                // A role may name its own profile, whose keys then count.
                match keys(&source)? {
                    Some(base) => break base,
                    None => return Err(incomplete(&source, "its source_profile leads to itself")),
                }
            }
            seen.push(name);
            profile = source;
        };
        // The outermost role is the last one to be assumed.
        roles.reverse();
        Ok(Some(Self { base, roles }))
    }
}

enum Next {
    Base(Base),
    Profile(String),
}

/// Where the credentials come from with which the role of `profile` is assumed.
fn source(profile: &Profile<'_>, wish: &Wish) -> Result<Next, CredentialError> {
    if let Some(name) = profile.get("source_profile") {
        return Ok(Next::Profile(name.to_owned()));
    }
    let service = |is_meant: bool, looked: &str| match is_meant {
        true => Ok(Next::Base(Base::Service {
            looked: format!("the profile {} names this source", profile.name),
        })),
        false => Err(incomplete(profile, looked)),
    };
    match profile.get("credential_source") {
        Some("Environment") => match &wish.environment {
            Some(keys) => Ok(Next::Base(Base::Keys(Arc::clone(keys)))),
            None => Err(incomplete(
                profile,
                "its credential_source is Environment, and AWS_ACCESS_KEY_ID is not set",
            )),
        },
        Some("Ec2InstanceMetadata") => service(
            !wish.in_container,
            "its credential_source is Ec2InstanceMetadata, and this is a container",
        ),
        Some("EcsContainer") => service(
            wish.in_container,
            "its credential_source is EcsContainer, and this is no such container",
        ),
        _ => Err(incomplete(
            profile,
            "it has a role_arn, and neither a source_profile nor a credential_source that is known",
        )),
    }
}

/// The credentials of a profile without a role.
fn own(profile: &Profile<'_>, files: &Files) -> Result<Option<Base>, CredentialError> {
    if let Some(session) = single_sign_on(profile, files)? {
        return Ok(Some(Base::SingleSignOn(session)));
    }
    if profile.in_credentials("aws_access_key_id").is_some() {
        return keys(profile);
    }
    if let Some(command) = profile.get("credential_process") {
        if !profile.runs_commands() {
            return Err(incomplete(
                profile,
                "its file is another user's, so its credential_process is not run",
            ));
        }
        return Ok(Some(Base::Command {
            profile: profile.name.clone(),
            command: command.to_owned(),
        }));
    }
    keys(profile)
}

/// The keys of a profile.
fn keys(profile: &Profile<'_>) -> Result<Option<Base>, CredentialError> {
    let Some(key_id) = profile.get("aws_access_key_id") else {
        return Ok(None);
    };
    // All three are of one file: the others may belong to another key.
    let is_in_credentials = profile.in_credentials("aws_access_key_id").is_some();
    let of_file = |key| match is_in_credentials {
        true => profile.in_credentials(key),
        false => profile.in_config(key),
    };
    let Some(secret_key) = of_file("aws_secret_access_key") else {
        return Err(incomplete(
            profile,
            "it has an aws_access_key_id and no aws_secret_access_key",
        ));
    };
    credential(key_id, secret_key, of_file("aws_session_token"))
        .map(|credential| Some(Base::Keys(credential)))
        .ok_or_else(|| incomplete(profile, "its keys have characters that no key has"))
}

/// A credential, if its parts can be sent in headers.
pub(super) fn credential(
    key_id: &str,
    secret_key: &str,
    token: Option<&str>,
) -> Option<Arc<AwsCredential>> {
    let all = [Some(key_id), Some(secret_key), token]
        .into_iter()
        .flatten();
    let mut bytes = all.flat_map(str::bytes);
    bytes.all(|byte| byte.is_ascii_graphic()).then(|| {
        Arc::new(AwsCredential {
            key_id: key_id.to_owned(),
            secret_key: secret_key.to_owned(),
            token: token.map(ToOwned::to_owned),
        })
    })
}

fn role(profile: &Profile<'_>, arn: &str) -> Role {
    let get = |key| profile.get(key).map(ToOwned::to_owned);
    Role {
        arn: arn.to_owned(),
        session: get("role_session_name"),
        external_id: get("external_id"),
        duration_seconds: get("duration_seconds"),
        region: get("region"),
    }
}

fn refuse_code(profile: &Profile<'_>) -> Result<(), CredentialError> {
    match profile.get("mfa_serial") {
        None => Ok(()),
        Some(_) => Err(CredentialError::refused(
            format!(
                "the profile {} needs a code of a device (mfa_serial), which a daemon cannot ask for",
                profile.name
            ),
            format!(
                "set the variables that aws configure export-credentials --profile {} --format env prints",
                profile.name
            ),
        )),
    }
}

/// The session of `aws sso login` that `profile` uses, if it uses one.
fn single_sign_on(
    profile: &Profile<'_>,
    files: &Files,
) -> Result<Option<SingleSignOn>, CredentialError> {
    let (Some(account), Some(role)) = (profile.get("sso_account_id"), profile.get("sso_role_name"))
    else {
        return Ok(None);
    };
    let session = profile.get("sso_session");
    let section = match session {
        Some(name) => Some(files.section("sso-session", name).ok_or_else(|| {
            let why = format!("its sso_session {name} is not in the configuration file");
            incomplete(profile, &why)
        })?),
        None => None,
    };
    let get = |key| match section {
        Some(section) => value(section, key),
        None => profile.get(key),
    };
    let cache_key = session.or_else(|| get("sso_start_url"));
    let (Some(cache_key), Some(region)) = (cache_key, get("sso_region")) else {
        return Err(incomplete(
            profile,
            "it needs an sso_session, or an sso_start_url and an sso_region",
        ));
    };
    Ok(Some(SingleSignOn {
        profile: profile.name.clone(),
        cache_key: cache_key.to_owned(),
        region: region.to_owned(),
        account: account.to_owned(),
        role: role.to_owned(),
    }))
}

fn incomplete(profile: &Profile<'_>, why: &str) -> CredentialError {
    CredentialError::refused(
        format!("the profile {} cannot be used: {why}", profile.name),
        "change it in ~/.aws/config, or choose another one with AWS_PROFILE",
    )
}

fn missing(name: &str, named_by: &str, files: &Files) -> CredentialError {
    let hint = match nearest(name, files.names()) {
        Some(near) => format!("did you mean {near}?"),
        None => "check the name (aws configure list-profiles)".to_owned(),
    };
    let places = files.places(name);
    CredentialError::refused(
        format!("there is no profile {name:?}, which {named_by} names ({places})"),
        hint,
    )
}

#[cfg(test)]
mod tests;
