//! The clients of one socket: how many are served, and which of them make room for others.

use super::error::ControlError;
use super::link::{Activity, AnswerGuard, Link};
use super::request::Peer;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{AbortHandle, JoinSet};
use tower::ServiceExt;

/// Bytes of a request's head, which holds a name at most; and of an answer, in frames, that wait for the client
/// to take them.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long a client may take for the head of a request, and between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take: longer than the allocator's own timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Clients that are being refused at a time, because their sender has too many. Further ones are disconnected
/// without a reason.
const REFUSALS_MAX: usize = 16;
/// How long a client that is refused may take to send its request and to read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// How many clients a socket serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Of all senders together. A new client replaces the client that was idle the longest; if none is idle, it
    /// waits until a connection ends.
    pub(super) all: usize,
    /// Of one sender, so that none can lock out the others. A new client replaces the longest idle client of the
    /// same sender; if none is idle, it is refused.
    pub(super) of_sender: usize,
}

/// Where clients come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sender {
    /// The processes of the user with this id.
    User(u32),
    /// A node.
    Address(IpAddr),
}

/// The clients of one socket. Dropping it closes their connections.
pub(super) struct Clients {
    limits: Limits,
    serving: JoinSet<()>,
    connections: Vec<Connection>,
    refusing: JoinSet<()>,
}

struct Connection {
    task: AbortHandle,
    from: Option<Sender>,
    activity: Activity,
}

impl Clients {
    /// Creates one without clients.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            serving: JoinSet::new(),
            connections: Vec::new(),
            refusing: JoinSet::new(),
        }
    }

    /// Makes room for a client of `from`. Returns `false` if it must be refused.
    async fn admit(&mut self, from: Option<Sender>) -> bool {
        loop {
            // Connections that have ended make room first.
            while self.serving.try_join_next().is_some() {}
            self.connections.retain(|one| !one.task.is_finished());
            let is_same = |one: &Connection| from.is_some() && one.from == from;
            let same = self.connections.iter().filter(|one| is_same(one)).count();
            let sender_is_full = same >= self.limits.of_sender;
            if !sender_is_full && self.connections.len() < self.limits.all {
                return true;
            }
            let candidates = self.connections.iter().enumerate();
            let candidates = candidates.filter(|(_, one)| !sender_is_full || is_same(one));
            let idle = candidates.filter_map(|(at, one)| Some((one.activity.idle_since()?, at)));
            // The idle connection with the earliest time has been idle the longest. A client whose connection is
            // closed between two requests opens another one.
            if let Some((_, idlest)) = idle.min() {
                self.connections.swap_remove(idlest).task.abort();
            } else if sender_is_full {
                return false;
            } else {
                // This ends: an answer begins within a time limit, and a client that does not take it is
                // disconnected.
                drop(self.serving.join_next().await);
            }
        }
    }

    /// Serves a client until it disconnects, in a task. `from` is the sender whose clients are counted; `None` if
    /// only their total is limited.
    pub(super) async fn serve(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        router: &Router,
        peer: Peer,
        from: Option<Sender>,
    ) {
        if !self.admit(from).await {
            tracing::debug!(?from, "refused a client: its sender has too many");
            self.refuse(stream);
            return;
        }
        let activity = Activity::default();
        let serving = converse(stream, router.clone(), peer, activity.clone(), true);
        let task = self.serving.spawn(serving);
        self.connections.push(Connection {
            task,
            from,
            activity,
        });
    }

    /// Returns the number of connections over which a request is being answered.
    #[cfg(test)]
    pub(super) fn busy(&self) -> usize {
        let mut busy = 0;
        for one in &self.connections {
            let is_busy = one.activity.idle_since().is_none() && !one.task.is_finished();
            busy += usize::from(is_busy);
        }
        busy
    }

    /// Answers one request of a client with a refusal.
    fn refuse(&mut self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        while self.refusing.try_join_next().is_some() {}
        if self.refusing.len() >= REFUSALS_MAX {
            return;
        }
        let most = self.limits.of_sender;
        let refusal = Router::new().fallback(async move || {
            let why = format!("{most} requests of this user or node are being answered already");
            let advice = "Read their answers to the end, and send this one again after that; a connection can carry \
                          any number of requests, one after the other";
            ControlError::new(429, why, advice)
        });
        let refusing = converse(stream, refusal, Peer::default(), Activity::default(), false);
        self.refusing.spawn(async move {
            drop(tokio::time::timeout(REFUSAL_TIMEOUT, refusing).await);
        });
    }
}

/// Answers the requests of one connection.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    peer: Peer,
    activity: Activity,
    keep_alive: bool,
) {
    let link = Link::new(stream, activity.clone());
    let service = service_fn(|request: Request<Incoming>| {
        let (answering, router) = (activity.begin(), router.clone());
        async move { Ok::<_, Infallible>(answer(router, peer, answering, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(link), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a client of the control socket went away");
    }
}

/// Answers `request`. The head of the answer is sent within [`ANSWER_TIMEOUT`]. A streamed body may take any
/// time, as long as the client reads, and keeps the connection busy.
async fn answer(
    router: Router,
    peer: Peer,
    answering: AnswerGuard,
    mut request: Request<Incoming>,
) -> Response {
    request.extensions_mut().insert(peer);
    let making = tokio::time::timeout(ANSWER_TIMEOUT, router.oneshot(request));
    let response = match making.await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_elapsed) => {
            ControlError::new(503, "no answer came in time", "Try again").into_response()
        }
    };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // Moved into the body. hyper drops a body when it has buffered the last frame, which may be the only
            // one, so this is not the end of the answer: see [`Activity`].
            let _answering = &answering;
            frame
        }))
    })
}
