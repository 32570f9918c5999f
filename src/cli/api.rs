//! `copperfs api`: one request to a daemon's HTTP interface.

use super::daemon::sockets_of;
use super::mounted::MountFlag;
use super::say;
use anyhow::Context;
use clap::Args;
use serde_json::Value;

/// Flags of `api`.
#[derive(Debug, Args)]
pub struct ApiArgs {
    /// GET, POST, PUT or DELETE
    #[arg(value_parser = ["GET", "POST", "PUT", "DELETE"], ignore_case = true, required_unless_present = "socket")]
    method: Option<String>,
    /// The path of the request: /v1/allocation
    #[arg(required_unless_present = "socket")]
    path: Option<String>,
    /// The body, as JSON
    body: Option<String>,
    /// Print the path of the socket, and send nothing
    #[arg(long, conflicts_with_all = ["method", "path", "body"])]
    socket: bool,
    #[command(flatten)]
    mount: MountFlag,
}

/// Sends the request, and prints the answer.
///
/// # Errors
/// The daemon cannot be reached, or refuses; the body is no JSON.
pub fn api(args: &ApiArgs) -> anyhow::Result<()> {
    let (Some(method), Some(path)) = (&args.method, &args.path) else {
        say(sockets_of(&args.mount.find()?)?.owner.display());
        return Ok(());
    };
    let body = args.body.as_deref().map(serde_json::from_str::<Value>);
    let body = body.transpose().context("the body is no JSON")?;
    let answer = args
        .mount
        .ask(&method.to_ascii_uppercase(), path, body.as_ref())?;
    say(serde_json::to_string_pretty(&answer)?);
    Ok(())
}
