//! Relays the lines of all adapters to the daemon, in one conversation, and knows which jobs are live.
//!
//! One task owns everything here, so the daemon gets the lines in the order in which their jobs were noted. When the
//! conversation breaks, the daemon has lost the jobs or ends them. Then the relay connects again, and submits all live
//! jobs again. Meanwhile adapters get an error for each line, and the lines still count for the live jobs.

use super::conversation::{Connecting, Conversation, Daemon, UNANSWERED_MAX};
use super::run_log::RunLog;
use crate::cli::fail;
use crate::pipeline::live_jobs::{LiveJobs, Replaced};
use crate::pipeline::message::{Event, Message, Submission};
use crate::pipeline::profile::{Action, Expectations, Recorder};
use serde::Serialize;
use serde_json::{Number, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// How long the daemon may take for an answer, or to take a line. Then the relay connects again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the ends of jobs may take when the run has ended.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The connection of the run itself. Those of adapters are numbered from 1.
const OWN: u64 = 0;

/// What happens outside of the conversation with the daemon.
pub(super) enum Input {
    /// An adapter has written a line.
    Line {
        /// Its connection, from 1.
        connection: u64,
        /// Without its end.
        line: Vec<u8>,
        /// Receives the answer, without a line end.
        answer: oneshot::Sender<Vec<u8>>,
    },
    /// The process at the other end of a closed connection has ended. Its jobs end.
    Gone(u64),
}

/// Values of fields that adapters need not write.
#[derive(Debug, Clone)]
pub(super) struct Defaults {
    pub(super) app: String,
    pub(super) dataset: String,
    pub(super) consume: String,
    pub(super) expires_s: Number,
}

/// A line to the daemon.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outgoing {
    Submit(Arc<Submission>),
    Event(Event),
}

/// A line that is to be sent, or that was sent and has no answer yet.
struct Pending {
    line: Outgoing,
    /// What a submission has replaced.
    replaced: Replaced,
    /// The line concerns an expected job.
    is_expected: bool,
    /// The adapter that waits; `None` for lines of the run itself.
    answer: Option<oneshot::Sender<Vec<u8>>>,
    deadline: Instant,
}

enum Link {
    Up(Conversation),
    Down(Connecting),
}

enum LinkEvent {
    Answer(Option<Vec<u8>>),
    Connected(anyhow::Result<Conversation>),
}

/// See the module.
pub(super) struct Relay {
    defaults: Defaults,
    daemon: Daemon,
    link: Link,
    jobs: LiveJobs,
    recorder: Option<Recorder>,
    expectations: Option<Expectations>,
    log: Option<RunLog>,
    /// To be sent, in order. Adapters' lines wait while it is not empty, so it has the lines of one event at most.
    outbox: VecDeque<Pending>,
    /// Sent, in order, at most [`UNANSWERED_MAX`].
    unanswered: VecDeque<Pending>,
    has_warned: bool,
    /// When a finishing relay gives up.
    finish: Option<Instant>,
}

/// The result of a run.
pub(super) struct Finished {
    /// The recorder of the profile, if one was given.
    pub(super) recorder: Option<Recorder>,
}

impl Relay {
    /// Begins to relay over `conversation`.
    pub(super) fn new(defaults: Defaults, daemon: Daemon, conversation: Conversation) -> Self {
        Self {
            defaults,
            daemon,
            link: Link::Up(conversation),
            jobs: LiveJobs::default(),
            recorder: None,
            expectations: None,
            log: None,
            outbox: VecDeque::new(),
            unanswered: VecDeque::new(),
            has_warned: false,
            finish: None,
        }
    }

    /// Records the profile of the run, and expects the jobs of an earlier one.
    pub(super) fn profile(&mut self, recorder: Recorder, expectations: Option<Expectations>) {
        self.recorder = Some(recorder);
        self.expectations = expectations;
    }

    /// Writes each line to `log` when it is answered.
    pub(super) fn log(&mut self, log: RunLog) {
        self.log = Some(log);
    }

    /// Relays until all senders of `inputs` are gone, and then ends all jobs. From `finishing` on, the time for it is
    /// limited.
    pub(super) async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut finishing: oneshot::Receiver<()>,
    ) -> Finished {
        let mut is_over = false;
        loop {
            self.send().await;
            let is_down = matches!(self.link, Link::Down(_));
            let is_sent = self.outbox.is_empty() && self.unanswered.is_empty();
            if is_over && (is_down || is_sent) {
                break;
            }
            let may_take = self.outbox.is_empty() && self.unanswered.len() < UNANSWERED_MAX;
            let deadline = self.deadline();
            tokio::select! {
                input = inputs.recv(), if may_take && !is_over => match input {
                    Some(input) => self.take(input),
                    None => {
                        is_over = true;
                        self.end_all();
                    }
                },
                event = self.link.next() => self.linked(event),
                _ = &mut finishing, if self.finish.is_none() => {
                    self.finish = Some(Instant::now() + FINISH_TIMEOUT);
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    if self.finish.is_some() {
                        self.warn("it does not answer");
                        break;
                    }
                    self.broken("it does not answer");
                }
            }
        }
        Finished {
            recorder: self.recorder,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let answer = self.unanswered.front().map(|pending| pending.deadline);
        answer.into_iter().chain(self.finish).min()
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Line {
                connection,
                line,
                answer,
            } => match Message::from_json(&line) {
                Ok(Message::Submit(submission)) => {
                    self.submit(connection, *submission, Some(answer));
                }
                Ok(Message::Event(event)) => self.event(connection, event, Some(answer), false),
                Err(error) => {
                    let error = format!("the line is no message of an adapter: {error}");
                    reply(
                        answer,
                        &error,
                        "Write one JSON object a line, as in docs/PIPELINES.md",
                    );
                }
            },
            Input::Gone(connection) => {
                for job in self.jobs.names(Some(connection)) {
                    self.event(OWN, Event::end(&job), None, false);
                }
            }
        }
    }

    fn end_all(&mut self) {
        let left = self.expectations.as_mut().map(Expectations::finish);
        self.carry_out(left.unwrap_or_default());
        for job in self.jobs.names(None) {
            self.event(OWN, Event::end(&job), None, false);
        }
    }

    fn submit(
        &mut self,
        connection: u64,
        mut submission: Submission,
        answer: Option<oneshot::Sender<Vec<u8>>>,
    ) {
        let Defaults {
            app,
            dataset,
            consume,
            expires_s,
        } = &self.defaults;
        submission.app.get_or_insert_with(|| app.clone());
        submission.dataset.get_or_insert_with(|| dataset.clone());
        submission.consume.get_or_insert_with(|| consume.clone());
        submission
            .expires_s
            .get_or_insert_with(|| expires_s.clone());
        let (submission, replaced) = self.jobs.submit(connection, submission);
        self.push(Pending {
            line: Outgoing::Submit(submission),
            replaced,
            is_expected: connection == OWN,
            answer,
            deadline: Instant::now(),
        });
    }

    fn event(
        &mut self,
        connection: u64,
        event: Event,
        answer: Option<oneshot::Sender<Vec<u8>>>,
        is_expected: bool,
    ) {
        self.jobs.event(connection, &event);
        self.push(Pending {
            line: Outgoing::Event(event),
            replaced: Replaced::default(),
            is_expected,
            answer,
            deadline: Instant::now(),
        });
    }

    /// Sends a line in its turn. Without a daemon it has been noted, and that is all.
    fn push(&mut self, pending: Pending) {
        match self.link {
            Link::Up(_) => self.outbox.push_back(pending),
            Link::Down(_) => pending.lose(),
        }
    }

    /// Carries out what the expectations say: expected jobs belong to the run itself.
    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Submit(submission) => self.submit(OWN, *submission, None),
                Action::End { job } => self.event(OWN, Event::end(&job), None, true),
                Action::Differs(difference) => fail(difference),
            }
        }
    }

    /// Sends as many lines as may be unanswered.
    async fn send(&mut self) {
        let Link::Up(conversation) = &mut self.link else {
            return;
        };
        let (outbox, unanswered) = (&mut self.outbox, &mut self.unanswered);
        let sending = async {
            let mut is_new = false;
            while unanswered.len() < UNANSWERED_MAX
                && let Some(mut pending) = outbox.pop_front()
            {
                is_new = true;
                pending.deadline = Instant::now() + ANSWER_TIMEOUT;
                unanswered.push_back(pending);
                if let Some(last) = unanswered.back() {
                    conversation.request.send(&last.line).await?;
                }
            }
            match is_new {
                true => conversation.request.flush().await,
                false => Ok(()),
            }
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, sending).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.broken(&error.to_string()),
            Err(_elapsed) => self.broken("it takes no lines"),
        }
    }

    fn linked(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Answer(Some(answer)) => match serde_json::from_slice::<Value>(&answer) {
                Ok(value) => self.answered(&value, answer),
                Err(error) => self.broken(&format!("its answer is no JSON ({error})")),
            },
            LinkEvent::Answer(None) => self.broken("it has gone away"),
            LinkEvent::Connected(Ok(conversation)) => {
                self.link = Link::Up(conversation);
                self.daemon.is_back();
                let again = self.jobs.repeat();
                self.outbox
                    .extend(again.into_iter().map(|(connection, submission)| Pending {
                        line: Outgoing::Submit(submission),
                        replaced: Replaced::default(),
                        is_expected: connection == OWN,
                        answer: None,
                        deadline: Instant::now(),
                    }));
            }
            LinkEvent::Connected(Err(error)) => {
                tracing::debug!(%error, "the daemon is still away");
                self.link = Link::Down(self.daemon.connect_again());
            }
        }
    }

    fn answered(&mut self, value: &Value, answer: Vec<u8>) {
        let Some(pending) = self.unanswered.pop_front() else {
            return self.broken("it answers more than it was asked");
        };
        if let Some(log) = &mut self.log {
            log.write(&pending.line, &answer, pending.is_expected);
        }
        let is_accepted = value["accepted"].as_bool() == Some(true);
        if let Outgoing::Submit(submission) = &pending.line {
            match is_accepted {
                true if !pending.is_expected => self.observe(submission),
                true => {}
                false => self.jobs.refused(submission, pending.replaced),
            }
        }
        match (pending.answer, value["error"].as_str()) {
            // An adapter that has gone away needs no answer.
            (Some(adapter), _) => drop(adapter.send(answer)),
            (None, Some(error)) if matches!(pending.line, Outgoing::Submit(_)) => {
                self.warn_once(&format!("a job of this run was refused: {error}"));
            }
            (None, _) => {}
        }
    }

    /// Compares an accepted job with the profile.
    fn observe(&mut self, submission: &Submission) {
        if let Some(recorder) = &mut self.recorder {
            recorder.submitted(submission);
        }
        let actions = self
            .expectations
            .as_mut()
            .map(|it| it.submitted(submission));
        self.carry_out(actions.unwrap_or_default());
    }

    /// The conversation has ended. The live jobs are submitted again in the next one, so what was not answered is not
    /// repeated.
    fn broken(&mut self, why: &str) {
        self.warn(why);
        self.link = Link::Down(self.daemon.connect_again());
        for pending in self.unanswered.drain(..).chain(self.outbox.drain(..)) {
            pending.lose();
        }
    }

    fn warn(&mut self, why: &str) {
        self.warn_once(&format!(
            "the daemon cannot be told about the jobs: {why}. The command goes on, and the jobs count again when the \
             daemon is back"
        ));
    }

    fn warn_once(&mut self, text: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            fail(format_args!("warning: {text}"));
        }
    }
}

impl Link {
    /// The next event. Cancellation loses nothing.
    async fn next(&mut self) -> LinkEvent {
        match self {
            Self::Up(conversation) => LinkEvent::Answer(conversation.answers.recv().await),
            Self::Down(connecting) => LinkEvent::Connected(connecting.await),
        }
    }
}

impl Pending {
    /// The daemon is not there.
    fn lose(self) {
        if let Some(answer) = self.answer {
            let error = "the daemon does not answer";
            reply(
                answer,
                error,
                "Go on: the run submits the live jobs again when the daemon is back",
            );
        }
    }
}

fn reply(answer: oneshot::Sender<Vec<u8>>, error: &str, advice: &str) {
    let text = json!({ "error": error, "try": advice }).to_string();
    // An adapter that has gone away needs no answer.
    let _gone = answer.send(text.into_bytes());
}
