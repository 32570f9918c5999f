//! A daemon that keeps jobs in memory: the part of the control plane that `lrc run` uses.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use copperfs_policy::references::{JobTable, Submitted};
use futures_util::{StreamExt, TryStreamExt};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixListener;
use tokio::sync::watch;

/// Serves until it is killed.
#[derive(Clone)]
pub(super) struct FakeDaemon {
    state: Arc<Mutex<State>>,
    life: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// Jobs, tasks and files: each file is one block.
    jobs: JobTable<String, String, String>,
    lines: Vec<Value>,
    datasets: Vec<String>,
    refuses_all: bool,
}

impl FakeDaemon {
    pub(super) fn start(socket: &Path) -> Self {
        let _absent = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let (life, alive) = watch::channel(true);
        let state = Arc::new(Mutex::new(State::default()));
        let daemon = Self {
            state: Arc::clone(&state),
            life,
        };
        tokio::spawn(async move {
            let mut dead = alive.clone();
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    _ = dead.wait_for(|alive| !alive) => break,
                };
                let (state, mut dead) = (Arc::clone(&state), alive.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let state = Arc::clone(&state);
                        async move { Ok::<_, Infallible>(answer(&state, request).await) }
                    });
                    let serving = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    tokio::select! {
                        _ = serving => {}
                        _ = dead.wait_for(|alive| !alive) => {}
                    }
                });
            }
        });
        daemon
    }

    /// Closes all connections, and forgets everything.
    pub(super) async fn kill(&self) {
        self.life.send_replace(false);
        // The socket's listener and the connections are dropped by their tasks.
        self.life.closed().await;
    }

    pub(super) fn lines(&self) -> Vec<Value> {
        self.state.lock().lines.clone()
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u32> {
        let state = self.state.lock();
        state
            .jobs
            .counts()
            .map(|(file, count)| (file.clone(), count))
            .collect()
    }

    pub(super) fn datasets(&self, names: &[&str]) {
        self.state.lock().datasets = names.iter().map(ToString::to_string).collect();
    }

    pub(super) fn refuse_all(&self) {
        self.state.lock().refuses_all = true;
    }
}

async fn answer(state: &Arc<Mutex<State>>, request: Request<Incoming>) -> Response {
    let view = |name: &String| json!({ "name": name, "path": format!("/lus/{name}"), "keep": "references" });
    let refuse = |status, error: &str, advice: &str| {
        (status, json!({ "error": error, "try": advice }).to_string()).into_response()
    };
    let path = request.uri().path().to_owned();
    if path == "/v1/lrc" {
        return match state.lock().refuses_all {
            true => refuse(
                StatusCode::NOT_FOUND,
                "this daemon counts no references",
                "Use another",
            ),
            false => converse(Arc::clone(state), request),
        };
    }
    let state = state.lock();
    if path == "/v1/datasets" {
        let all: Vec<Value> = state.datasets.iter().map(view).collect();
        return json!({ "datasets": all }).to_string().into_response();
    }
    let named = path.strip_prefix("/v1/datasets/");
    match state
        .datasets
        .iter()
        .find(|name| Some(name.as_str()) == named)
    {
        Some(name) => view(name).to_string().into_response(),
        None => refuse(
            StatusCode::NOT_FOUND,
            "no such dataset",
            "See copperfs dataset list",
        ),
    }
}

/// Ends the jobs of its conversation when it breaks.
struct Attached {
    state: Arc<Mutex<State>>,
    jobs: HashSet<String>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        for job in &self.jobs {
            state.jobs.end(job, &mut Vec::new());
        }
    }
}

fn converse(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Response {
    let body = Body::new(request.into_body()).into_data_stream();
    let body = tokio_lines(body.map_err(std::io::Error::other));
    let attached = Attached {
        state,
        jobs: HashSet::new(),
    };
    let answers =
        futures_util::stream::unfold((body, attached), |(mut lines, mut attached)| async {
            let line = lines.next_line().await.ok()??;
            let line: Value = serde_json::from_str(&line).unwrap();
            let answer = attached.take(&line);
            attached.state.lock().lines.push(line);
            Some((
                Ok::<_, Infallible>(format!("{answer}\n")),
                (lines, attached),
            ))
        });
    Body::from_stream(answers).into_response()
}

type Lines = tokio::io::Lines<BufReader<Box<dyn tokio::io::AsyncRead + Send + Unpin>>>;

fn tokio_lines(
    stream: impl futures_util::Stream<Item = std::io::Result<axum::body::Bytes>> + Send + 'static,
) -> Lines {
    let (mut write, read) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        while let Some(Ok(bytes)) = stream.next().await {
            if tokio::io::AsyncWriteExt::write_all(&mut write, &bytes)
                .await
                .is_err()
            {
                break;
            }
        }
    });
    let read: Box<dyn tokio::io::AsyncRead + Send + Unpin> = Box::new(read);
    BufReader::new(read).lines()
}

impl Attached {
    fn take(&mut self, line: &Value) -> Value {
        let mut state = self.state.lock();
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let (job, task, changed) = (text("job"), text("task"), &mut Vec::new());
        let accepted = match line["op"].as_str().unwrap() {
            "attach" => true,
            "done" => state.jobs.done(&job, &task, changed),
            "taskfail" => state.jobs.fail(&job, &task, changed),
            "end" => state.jobs.end(&job, changed),
            "submit" if job.starts_with("refused") => {
                return json!({ "error": "it is refused", "try": "Nothing" });
            }
            "submit" => {
                let tasks: Vec<(String, Vec<String>)> = (line["tasks"].as_array().unwrap().iter())
                    .map(|task| (task["id"].as_str().unwrap().to_owned(), files(line, task)))
                    .collect();
                let blocks: HashSet<&String> = tasks.iter().flat_map(|(_, files)| files).collect();
                let blocks = blocks.len();
                let attempt = line["attempt"].as_u64().unwrap_or(0);
                let taken = state
                    .jobs
                    .submit(job.clone(), attempt, tasks, changed)
                    .unwrap();
                self.jobs.insert(job);
                let accepted = taken == Submitted::Accepted;
                return json!({ "accepted": accepted, "blocks": blocks, "unknown_paths": [] });
            }
            other => panic!("{other}"),
        };
        json!({ "accepted": accepted })
    }
}

fn files(line: &Value, task: &Value) -> Vec<String> {
    let indexed = task["in"].as_array().into_iter().flatten().map(|input| {
        let index = input.as_u64().or_else(|| input[0].as_u64()).unwrap();
        &line["files"][usize::try_from(index).unwrap()]
    });
    let named = task["inputs"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|input| &input["path"]);
    indexed
        .chain(named)
        .map(|path| path.as_str().unwrap().to_owned())
        .collect()
}
