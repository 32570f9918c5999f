//! Incoming requests: the sender, and the body, whose size, duration and number are limited.

use super::Control;
use super::error::ControlError;
use crate::job::Process;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of a request's body: a problem of thousands of jobs. Larger ones are refused.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Bodies above [`SMALL_BODY_BYTES`] that a server holds at a time, from reading to answer, which limits
/// the memory of all clients together. Further ones wait, at most as long as an answer may take.
pub(super) const LARGE_BODIES_MAX: usize = 2;
/// Bodies up to this many bytes do not wait.
const SMALL_BODY_BYTES: u64 = 64 << 10;
/// How long a request's body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request waits for the large bodies before it.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// The clients that may send a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Users of the mount.
    Users,
    /// The owner of the daemon and root; over TCP, holders of the job's secret.
    Owner,
}

/// The sender of the requests of a connection, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Peer {
    /// The id of its user.
    pub(super) user: Option<u32>,
    /// The process that has connected.
    pub(super) process: Option<Process>,
}

impl Control {
    /// Refuses a sender that speaks for the job of another user.
    pub(super) fn check_speaker(
        &self,
        peer: Peer,
        access: Access,
        job: &str,
    ) -> Result<(), ControlError> {
        let allowed = match (access, peer.user) {
            (Access::Users, Some(user)) => self.node.may_speak(job, user, peer.process),
            _ => true,
        };
        if allowed {
            return Ok(());
        }
        let why = format!("job {job:?} belongs to another user");
        let advice =
            "Name the job that this process belongs to: docs/JOBS.md tells how it is found";
        Err(ControlError::new(403, why, advice))
    }

    /// Waits until a request with many bytes may be answered.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit, ControlError> {
        let permits = Arc::clone(&self.large_bodies);
        match tokio::time::timeout(TURN_TIMEOUT, permits.acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => {
                let why = "too many large requests are being answered";
                Err(ControlError::new(503, why, "Try again"))
            }
        }
    }
}

/// The whole body of a request, of at most `MAX` bytes. A large body holds its permit until it is dropped.
pub(super) struct RequestBody<const MAX: usize = BODY_BYTES_MAX> {
    pub(super) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<const MAX: usize> FromRequest<Control> for RequestBody<MAX> {
    type Rejection = ControlError;

    async fn from_request(request: Request, control: &Control) -> Result<Self, ControlError> {
        let body = request.into_body();
        // A body that is announced as too large is not read.
        if body.size_hint().lower() > MAX as u64 {
            return Err(too_large(MAX));
        }
        // A body of unknown length counts as large.
        let large = (body.size_hint().upper()).is_none_or(|bytes| bytes > SMALL_BODY_BYTES);
        let mut permit = None;
        if large {
            permit = Some(control.turn().await?);
        }
        let reading = Limited::new(body, MAX).collect();
        let (status, why) = match tokio::time::timeout(BODY_TIMEOUT, reading).await {
            Ok(Ok(body)) => {
                return Ok(Self {
                    bytes: body.to_bytes(),
                    _permit: permit,
                });
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large(MAX)),
            Ok(Err(error)) => (400, format!("the request cannot be read: {error}")),
            Err(_elapsed) => (408, "the request does not end".to_owned()),
        };
        Err(ControlError::new(status, why, "Send it again"))
    }
}

fn too_large(max: usize) -> ControlError {
    let why = format!("the request has more than {max} bytes");
    ControlError::new(413, why, "Send less at a time")
}
