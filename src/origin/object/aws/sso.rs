//! Single sign-on: the token that `aws sso login` has stored is exchanged for credentials of a role.
//!
//! A token that soon expires is renewed, if the login allows it, and stored again for the other tools.

use super::Issued;
use super::error::CredentialError;
use super::plan::{SingleSignOn, credential};
use super::web::{Answer, Web, domain};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use chrono::{DateTime, SecondsFormat, Utc};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use object_store::client::HttpRequestBody;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use url::form_urlencoded::Serializer;

const PORTAL: &str = "the single sign-on service";
/// The header with the token.
const BEARER: &str = "x-amz-sso_bearer_token";
/// A token that expires sooner is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// Larger files are no tokens.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The file of a token. Fields that are not used here are kept.
#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Token {
    access_token: String,
    expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_secret: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registration_expires_at: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// An answer to a request for another token.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Renewed {
    access_token: String,
    expires_in: u32,
    refresh_token: Option<String>,
}

/// An answer to a request for credentials.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Roles {
    role_credentials: RoleKeys,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleKeys {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    /// In milliseconds since 1970.
    expiration: u64,
}

/// The services, at addresses that variables or the region choose.
pub(super) struct Portal<'a> {
    pub(super) web: &'a Web,
    pub(super) variables: &'a BTreeMap<String, String>,
    pub(super) cache: &'a Path,
}

impl Portal<'_> {
    /// The credentials of the role of `session`.
    pub(super) async fn credentials(
        &self,
        session: &SingleSignOn,
    ) -> Result<Issued, CredentialError> {
        let path = self.cache.join(file_name(&session.cache_key));
        let token = self.token(session, path).await?;
        let query = Serializer::new(String::new())
            .append_pair("account_id", &session.account)
            .append_pair("role_name", &session.role)
            .finish();
        let host = self.endpoint("SSO", "portal.sso", session);
        let request = Request::get(format!("{host}/federation/credentials?{query}"))
            .header(BEARER, token.access_token.as_str())
            .body(HttpRequestBody::empty());
        let request = request.map_err(|_has_secrets| unusable(session))?;
        let Answer { status, body } = self.web.ask(PORTAL, request).await?;
        match status {
            200 => issued(&body).ok_or_else(|| unusable(session)),
            401 => Err(expired(session)),
            403 | 404 => Err(CredentialError::refused(
                format!(
                    "no AWS credentials: the single sign-on of the profile {} gives no access to the role {} of {}",
                    session.profile, session.role, session.account
                ),
                "check sso_account_id and sso_role_name in ~/.aws/config",
            )),
            _ => Err(failing(status)),
        }
    }

    /// The stored token, or another one if it soon expires.
    async fn token(&self, session: &SingleSignOn, path: PathBuf) -> Result<Token, CredentialError> {
        let stored = tokio::fs::metadata(&path).await.ok();
        let stored = stored.filter(|file| file.len() <= FILE_BYTES_MAX);
        let text = match stored {
            Some(_) => tokio::fs::read(&path).await.ok(),
            None => None,
        };
        let token = text.and_then(|text| serde_json::from_slice::<Token>(&text).ok());
        let token = token.ok_or_else(|| expired(session))?;
        let now = SystemTime::now();
        let end = super::date(&token.expires_at).ok_or_else(|| expired(session))?;
        if end > now + RENEW_BEFORE {
            return Ok(token);
        }
        match self.renewed(session, &token, now).await {
            Ok(renewed) => {
                let stored = renewed.clone();
                let storing = tokio::task::spawn_blocking(move || store(&path, &stored));
                if let Ok(Err(error)) = storing.await {
                    tracing::warn!(%error, "the renewed token of single sign-on cannot be stored");
                }
                Ok(renewed)
            }
            Err(_) if end > now => Ok(token),
            Err(error) => Err(error),
        }
    }

    /// Another token for the holder of `token`, if the login allows it.
    async fn renewed(
        &self,
        session: &SingleSignOn,
        token: &Token,
        now: SystemTime,
    ) -> Result<Token, CredentialError> {
        let registration = token.registration_expires_at.as_deref();
        let has_ended = |end: SystemTime| end <= now;
        if registration.and_then(super::date).is_some_and(has_ended) {
            return Err(expired(session));
        }
        let (Some(refresh), Some(id), Some(secret)) =
            (&token.refresh_token, &token.client_id, &token.client_secret)
        else {
            return Err(expired(session));
        };
        let body = serde_json::json!({
            "grantType": "refresh_token", "clientId": id, "clientSecret": secret, "refreshToken": refresh,
        });
        let host = self.endpoint("SSO_OIDC", "oidc", session);
        let request = Request::post(format!("{host}/token"))
            .header(CONTENT_TYPE, "application/json")
            .body(HttpRequestBody::from(body.to_string()));
        let request = request.map_err(|_has_secrets| unusable(session))?;
        let Answer { status, body } = self.web.ask(PORTAL, request).await?;
        match status {
            200 => {}
            429 | 500.. => return Err(failing(status)),
            _ => return Err(expired(session)),
        }
        let renewed = serde_json::from_slice::<Renewed>(&body);
        let renewed = renewed.map_err(|_has_secrets| unusable(session))?;
        let end = now + Duration::from_secs(renewed.expires_in.into());
        Ok(Token {
            access_token: renewed.access_token,
            expires_at: DateTime::<Utc>::from(end).to_rfc3339_opts(SecondsFormat::Secs, true),
            refresh_token: renewed
                .refresh_token
                .or_else(|| token.refresh_token.clone()),
            ..token.clone()
        })
    }

    fn endpoint(&self, service: &str, host: &str, session: &SingleSignOn) -> String {
        let SingleSignOn { region, .. } = session;
        let set = self.variables.get(&format!("AWS_ENDPOINT_URL_{service}"));
        let set = set.filter(|endpoint| !endpoint.is_empty());
        set.map_or_else(
            || format!("https://{host}.{region}.{}", domain(region)),
            |endpoint| endpoint.trim_end_matches('/').to_owned(),
        )
    }
}

fn issued(body: &[u8]) -> Option<Issued> {
    let keys = serde_json::from_slice::<Roles>(body).ok()?.role_credentials;
    let token = Some(keys.session_token.as_str());
    Some(Issued {
        credential: credential(&keys.access_key_id, &keys.secret_access_key, token)?,
        expires: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(keys.expiration)),
    })
}

/// The name of the file with the token of the session or start URL `key`, as Amazon's tools choose it.
fn file_name(key: &str) -> String {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
    let mut name = hash.as_ref().iter().fold(String::new(), |mut name, byte| {
        // Writing to a string cannot fail.
        write!(name, "{byte:02x}").ok();
        name
    });
    name.push_str(".json");
    name
}

/// Replaces the file with the token. Another tool that reads it meanwhile finds one of the two whole.
fn store(path: &Path, token: &Token) -> std::io::Result<()> {
    let beside = path.with_extension(format!("json.copperfs-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options
        .open(&beside)
        .and_then(|mut file| file.write_all(&serde_json::to_vec(token)?))
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // It may not be there.
        std::fs::remove_file(&beside).ok();
    }
    written
}

fn expired(session: &SingleSignOn) -> CredentialError {
    let profile = &session.profile;
    CredentialError::refused(
        format!(
            "no AWS credentials: the single sign-on session of the profile {profile} has expired or is missing"
        ),
        format!("run aws sso login --profile {profile}"),
    )
}

fn failing(status: u16) -> CredentialError {
    CredentialError::unavailable(
        format!("no AWS credentials: {PORTAL} answered {status}"),
        "try again later, and check sso_region in ~/.aws/config",
    )
}

fn unusable(session: &SingleSignOn) -> CredentialError {
    CredentialError::refused(
        format!(
            "no AWS credentials: the token or the answer of {PORTAL} cannot be used (profile {})",
            session.profile
        ),
        format!("run aws sso login --profile {}", session.profile),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_the_file_that_amazons_tools_write() {
        // `printf my-sso | sha1sum`
        assert_eq!(
            file_name("my-sso"),
            "0ad374308c5a4e22f723adf10145eafad7c4031c.json"
        );
    }

    #[test]
    fn a_stored_token_keeps_unknown_fields_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        let text = r#"{"startUrl":"u","accessToken":"a","expiresAt":"2001-01-01T00:00:00Z"}"#;
        let token: Token = serde_json::from_str(text).unwrap();
        store(&path, &token).unwrap();
        let stored: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(stored, serde_json::from_str::<Value>(text).unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
