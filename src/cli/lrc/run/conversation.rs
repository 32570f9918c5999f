//! Conversations with the daemon about jobs.

use crate::control::client::{AnswerLines, ControlClient, RequestLines};
use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Lines that the daemon has not answered. Further lines wait at their connections.
pub(super) const UNANSWERED_MAX: usize = 256;
/// The pause before the first attempt to connect again, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];

/// Finds the daemon. It is asked again for each conversation, because a daemon that was restarted may have another
/// socket. It may block.
type Find = Arc<dyn Fn() -> anyhow::Result<ControlClient> + Send + Sync>;

/// A conversation that is being begun.
pub(super) type Connecting = BoxFuture<'static, anyhow::Result<Conversation>>;

/// The daemon of a run.
#[derive(Clone)]
pub(super) struct Daemon {
    find: Find,
    app: String,
    pause: Duration,
}

/// A conversation. Its drop ends it.
pub(super) struct Conversation {
    pub(super) request: RequestLines,
    /// Ends when the daemon has gone away.
    pub(super) answers: mpsc::Receiver<Vec<u8>>,
    reader: JoinHandle<()>,
}

impl Daemon {
    /// The daemon that `find` finds, for the run `app`.
    pub(super) fn new(
        app: &str,
        find: impl Fn() -> anyhow::Result<ControlClient> + Send + Sync + 'static,
    ) -> Self {
        Self {
            find: Arc::new(find),
            app: app.to_owned(),
            pause: PAUSES[0],
        }
    }

    /// Begins a conversation. The daemon ends all jobs that are submitted in it when it breaks.
    ///
    /// # Errors
    /// The daemon cannot be found, or refuses.
    pub(super) async fn connect(&self) -> anyhow::Result<Conversation> {
        let find = Arc::clone(&self.find);
        let client = tokio::task::spawn_blocking(move || find()).await??;
        let (mut answers, mut request) = client.converse("POST", "/v1/lrc").await?;
        request
            .send(&json!({ "v": 1, "op": "attach", "app": self.app }))
            .await?;
        request.flush().await?;
        let answer: Value = serde_json::from_slice(&answers.line().await?)
            .context("the daemon's answer is no JSON: is it another version?")?;
        if let Some(error) = answer["error"].as_str() {
            anyhow::bail!("{error}. {}", answer["try"].as_str().unwrap_or_default());
        }
        Ok(Conversation::new(answers, request))
    }

    /// Begins another conversation after a pause, which grows.
    pub(super) fn connect_again(&mut self) -> Connecting {
        let daemon = self.clone();
        self.pause = (self.pause * 2).min(PAUSES[1]);
        async move {
            tokio::time::sleep(daemon.pause).await;
            daemon.connect().await
        }
        .boxed()
    }

    /// The daemon is there: the next pause is short.
    pub(super) fn is_back(&mut self) {
        self.pause = PAUSES[0];
    }
}

impl Conversation {
    fn new(mut lines: AnswerLines, request: RequestLines) -> Self {
        // Each line has one answer, so the queue has room for all of them, and the daemon never waits.
        let (out, answers) = mpsc::channel(UNANSWERED_MAX);
        // A task of its own, because a line that was read in part is lost when its future is dropped.
        let reader = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.wait().await {
                if out.send(line).await.is_err() {
                    break;
                }
            }
        });
        Self {
            request,
            answers,
            reader,
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.reader.abort();
    }
}
