//! Incoming requests: the sender, and the body, whose size, duration and number are limited.

use super::Control;
use super::error::ControlError;
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

/// The user that sends the requests of a connection, if known.
#[derive(Debug, Clone, Copy)]
pub(super) struct User(pub(super) Option<u32>);

/// The whole body of a request, bounded. A large body holds its permit until it is dropped.
pub(super) struct RequestBody {
    pub(super) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl FromRequest<Control> for RequestBody {
    type Rejection = ControlError;

    async fn from_request(request: Request, control: &Control) -> Result<Self, ControlError> {
        let body = request.into_body();
        // A body that is announced as too large is not read.
        if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(too_large());
        }
        // A body of unknown length counts as large.
        let large = (body.size_hint().upper()).is_none_or(|bytes| bytes > SMALL_BODY_BYTES);
        let mut permit = None;
        if large {
            let permits = Arc::clone(&control.large_bodies);
            let waiting = tokio::time::timeout(TURN_TIMEOUT, permits.acquire_owned());
            let Ok(Ok(turn)) = waiting.await else {
                let why = "too many large requests are being answered";
                return Err(ControlError::new(503, why, "Try again"));
            };
            permit = Some(turn);
        }
        let reading = Limited::new(body, BODY_BYTES_MAX).collect();
        let (status, why) = match tokio::time::timeout(BODY_TIMEOUT, reading).await {
            Ok(Ok(body)) => {
                return Ok(Self {
                    bytes: body.to_bytes(),
                    _permit: permit,
                });
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Err(error)) => (400, format!("the request cannot be read: {error}")),
            Err(_elapsed) => (408, "the request does not end".to_owned()),
        };
        Err(ControlError::new(status, why, "Send it again"))
    }
}

fn too_large() -> ControlError {
    let why = format!("the request has more than {BODY_BYTES_MAX} bytes");
    ControlError::new(413, why, "Send less at a time")
}
