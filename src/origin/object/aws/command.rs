//! `credential_process`: a command that prints credentials.

use super::Issued;
use super::error::CredentialError;
use super::plan::credential;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// A command that takes longer is ended.
const TIME_MAX: Duration = Duration::from_secs(60);
/// More output is not read.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Output {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// The credentials that `command` of `profile` prints. It gets `variables` beside those of this process, and no input.
/// Errors show neither the command, whose arguments may be secret, nor its output.
pub(super) async fn run(
    profile: &str,
    command: &str,
    variables: &BTreeMap<String, String>,
) -> Result<Issued, CredentialError> {
    let failed = |why: String| {
        CredentialError::refused(
            format!("no AWS credentials: credential_process of the profile {profile} {why}"),
            "run the command in a shell as the daemon's user to see its messages",
        )
    };
    let output = tokio::time::timeout(TIME_MAX, output(command, variables));
    let (status, output) = match output.await {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => return Err(failed(format!("cannot be run: {error}"))),
        Err(_elapsed) => return Err(failed(format!("took longer than {TIME_MAX:?}"))),
    };
    if !status.success() {
        return Err(failed(format!("failed ({status})")));
    }
    let Ok(output) = serde_json::from_slice::<Output>(&output) else {
        return Err(failed(
            "printed no JSON with Version, AccessKeyId and SecretAccessKey".into(),
        ));
    };
    if output.version != 1 {
        let version = output.version;
        return Err(failed(format!(
            "printed version {version}, and only 1 is known"
        )));
    }
    let expires = match output.expiration.as_deref().map(super::date) {
        Some(None) => return Err(failed("printed an Expiration that is no date".into())),
        Some(expires) => expires,
        None => None,
    };
    let token = output.session_token.as_deref();
    let credential = credential(&output.access_key_id, &output.secret_access_key, token);
    match credential {
        Some(credential) => Ok(Issued {
            credential,
            expires,
        }),
        None => Err(failed(
            "printed keys with characters that no key has".into(),
        )),
    }
}

async fn output(
    command: &str,
    variables: &BTreeMap<String, String>,
) -> std::io::Result<(ExitStatus, Vec<u8>)> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .envs(variables)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // The command ends if the request for the credentials is dropped.
        .kill_on_drop(true)
        .spawn()?;
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = stdout.take(OUTPUT_BYTES_MAX);
        stdout.read_to_end(&mut output).await?;
    }
    Ok((child.wait().await?, output))
}
