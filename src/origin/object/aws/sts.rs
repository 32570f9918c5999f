//! The service for roles (STS): `AssumeRole` with other credentials, and `AssumeRoleWithWebIdentity` with a token.

use super::Issued;
use super::error::CredentialError;
use super::plan::{Role, credential};
use super::web::{Answer, Web};
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequest;
use serde::Deserialize;
use std::path::Path;
use url::form_urlencoded::Serializer;

const SERVICE: &str = "the service for roles (STS)";
/// The version of the interface.
const VERSION: &str = "2011-06-15";
/// Tokens are a few kilobytes.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// Where the service is.
#[derive(Clone, Copy)]
pub(super) struct Sts<'a> {
    pub(super) web: &'a Web,
    pub(super) endpoint: &'a str,
    pub(super) region: &'a str,
}

impl Sts<'_> {
    /// Credentials of `role`, for the holder of `with`.
    pub(super) async fn assume(
        self,
        role: &Role,
        with: &AwsCredential,
    ) -> Result<Issued, CredentialError> {
        let external_id = ("ExternalId", role.external_id.as_deref());
        let mut request = self.request(form("AssumeRole", role, external_id))?;
        AwsAuthorizer::new(with, "sts", self.region)
            .try_authorize(&mut request, None)
            .map_err(|_shows_nothing| unusable("the request cannot be signed"))?;
        self.ask(role, request).await
    }

    /// Credentials of `role`, for the holder of the token in the file `token`.
    pub(super) async fn assume_with_token(
        self,
        role: &Role,
        token: &Path,
    ) -> Result<Issued, CredentialError> {
        let text = tokio::fs::read_to_string(token).await.map_err(|error| {
            CredentialError::refused(
                format!("the token file {} cannot be read: {error}", token.display()),
                "check AWS_WEB_IDENTITY_TOKEN_FILE, or web_identity_token_file of the profile",
            )
        })?;
        if text.len() > TOKEN_BYTES_MAX {
            return Err(unusable("the token file holds no token"));
        }
        let token = ("WebIdentityToken", Some(text.trim()));
        let request = self.request(form("AssumeRoleWithWebIdentity", role, token))?;
        self.ask(role, request).await
    }

    fn request(self, body: String) -> Result<HttpRequest, CredentialError> {
        let request = Request::post(self.endpoint)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/xml");
        let request = request.body(body.into());
        request.map_err(|_not_an_address| unusable("its endpoint is no address"))
    }

    async fn ask(self, role: &Role, request: HttpRequest) -> Result<Issued, CredentialError> {
        let Answer { status, body } = self.web.ask(SERVICE, request).await?;
        let body = String::from_utf8_lossy(&body);
        if !(200..300).contains(&status) {
            return Err(refusal(status, &body, &role.arn));
        }
        let answer: AssumeRoleAnswer = quick_xml::de::from_str(&body)
            .map_err(|_holds_secrets| unusable("its answer cannot be understood"))?;
        let keys = answer.result.credentials;
        let expires = super::date(&keys.expiration);
        let token = Some(keys.session_token.as_str());
        let credential = credential(&keys.access_key_id, &keys.secret_access_key, token);
        match (credential, expires) {
            (Some(credential), Some(expires)) => Ok(Issued {
                credential,
                expires: Some(expires),
            }),
            _ => Err(unusable("its answer cannot be understood")),
        }
    }
}

#[derive(Deserialize)]
struct AssumeRoleAnswer {
    #[serde(rename = "AssumeRoleResult", alias = "AssumeRoleWithWebIdentityResult")]
    result: AssumeRoleResult,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AssumeRoleResult {
    credentials: Keys,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Keys {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: String,
}

/// The body of a request for `role`, with one parameter more.
fn form(action: &str, role: &Role, more: (&str, Option<&str>)) -> String {
    let mut form = Serializer::new(String::new());
    for (name, value) in [
        ("Action", Some(action)),
        ("Version", Some(VERSION)),
        ("RoleArn", Some(&role.arn)),
        (
            "RoleSessionName",
            Some(role.session.as_deref().unwrap_or("copperfs")),
        ),
        ("DurationSeconds", role.duration_seconds.as_deref()),
        more,
    ] {
        if let Some(value) = value {
            form.append_pair(name, value);
        }
    }
    form.finish()
}

/// Errors of the service. Only these codes are shown: other parts of an answer may hold tokens.
const CODES: [(&str, &str); 10] = [
    (
        "AccessDenied",
        "the role does not trust these credentials: check the role's trust policy",
    ),
    (
        "ExpiredTokenException",
        "the token has expired: have its issuer write another one into the file",
    ),
    (
        "ExpiredToken",
        "the credentials of the source profile have expired",
    ),
    (
        "InvalidIdentityToken",
        "the role does not trust the issuer of the token, or it is no token",
    ),
    (
        "IDPRejectedClaim",
        "the issuer rejects the token: have it write another one into the file",
    ),
    (
        "IDPCommunicationError",
        "the issuer of the token does not answer: try again",
    ),
    (
        "InvalidClientTokenId",
        "the access key of the source profile is unknown",
    ),
    (
        "SignatureDoesNotMatch",
        "the secret key of the source profile is not that of its access key",
    ),
    (
        "ValidationError",
        "check role_arn, role_session_name, external_id and duration_seconds",
    ),
    (
        "RegionDisabledException",
        "the region is not enabled for this account: set another region",
    ),
];

fn refusal(status: u16, body: &str, arn: &str) -> CredentialError {
    let code = body.split_once("<Code>").and_then(|(_, rest)| {
        let (code, _) = rest.split_once("</Code>")?;
        CODES.iter().find(|known| known.0 == code)
    });
    let (code, hint) = match code {
        Some((code, hint)) => (format!(" {code}"), *hint),
        None => (String::new(), "check the role and the region"),
    };
    let text = format!("no AWS credentials for {arn}: {SERVICE} answered {status}{code}");
    match status {
        429 | 500.. => CredentialError::unavailable(text, hint),
        _ => CredentialError::refused(text, hint),
    }
}

fn unusable(why: &str) -> CredentialError {
    CredentialError::refused(
        format!("no AWS credentials of {SERVICE}: {why}"),
        "check the profile, AWS_ROLE_ARN and AWS_ENDPOINT_URL_STS",
    )
}
