//! Incoming requests: the sender, and the body, whose size, duration and number are limited.

use super::Control;
use super::error::ControlError;
use super::turns::Turn;
use crate::job::Process;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use std::time::Duration;

/// Bytes of a request's body: a problem of thousands of jobs. Larger ones are refused.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Bodies up to this many bytes do not wait. Larger ones wait for a turn, from reading to answer.
const SMALL_BODY_BYTES: u64 = 64 << 10;
/// How long a request's body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The clients that may send a request. Later ones may send all that earlier ones may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    /// Users of the mount.
    Users,
    /// The owner of the daemon and root; over TCP, holders of the job's secret.
    Owner,
    /// The owner of the daemon and root, on the daemon's own host.
    Host,
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
}

/// The whole body of a request, of at most `MAX` bytes. A large body holds its turn until it is dropped.
pub(super) struct RequestBody<const MAX: usize = BODY_BYTES_MAX> {
    pub(super) bytes: Bytes,
    _turn: Option<Turn>,
}

impl<const MAX: usize> FromRequest<Control> for RequestBody<MAX> {
    type Rejection = ControlError;

    async fn from_request(request: Request, control: &Control) -> Result<Self, ControlError> {
        let peer = request.extensions().get::<Peer>().copied();
        let body = request.into_body();
        // A body that is announced as too large is not read.
        if body.size_hint().lower() > MAX as u64 {
            return Err(too_large(MAX));
        }
        // A body of unknown length counts as large.
        let large = (body.size_hint().upper()).is_none_or(|bytes| bytes > SMALL_BODY_BYTES);
        let mut turn = None;
        if large {
            let user = peer.and_then(|peer| peer.user);
            turn = Some(control.large_bodies.wait(user).await?);
        }
        let reading = Limited::new(body, MAX).collect();
        let (status, why) = match tokio::time::timeout(BODY_TIMEOUT, reading).await {
            Ok(Ok(body)) => {
                return Ok(Self {
                    bytes: body.to_bytes(),
                    _turn: turn,
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
