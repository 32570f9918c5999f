//! A small HTTP/1.1 server on loopback that misbehaves as the test requests.

use crate::fixtures::path;
use copperfs::origin::OriginSpec;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// One request, as far as tests care.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// First and last byte of a `Range`.
    pub(crate) range: Option<(usize, usize)>,
    /// How many requests came before this one.
    pub(crate) index: usize,
    /// How many are being served, this one included.
    pub(crate) under_way: usize,
}

/// The server's reaction to a request.
pub(crate) enum Reply {
    /// Status, extra headers (each ended by `\r\n`), body.
    Answer(u16, String, Vec<u8>),
    /// Announces the whole body, and closes the connection after this many bytes of it.
    Cut(u16, String, Vec<u8>, usize),
    /// Says nothing for a long time.
    Silence,
    /// The same, so much later.
    Later(Duration, Box<Self>),
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (handler, log): (Arc<Handler>, _) = (Arc::new(handler), Arc::clone(&requests));
        let serving = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
                connections.spawn(serve(stream, handler, log, Arc::clone(&serving)));
            }
        });
        Self {
            address,
            requests,
            task,
        }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("the log").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One of the requests that are being served.
struct Serving(Arc<AtomicUsize>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(
    stream: TcpStream,
    handler: Arc<Handler>,
    log: Arc<Mutex<Vec<Request>>>,
    serving: Arc<AtomicUsize>,
) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    if stream.read_line(&mut line).await.is_err() {
        return;
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return;
    };
    let (mut range, mut length) = (None, 0);
    loop {
        let mut header = String::new();
        if stream.read_line(&mut header).await.is_err() || header.trim().is_empty() {
            break;
        }
        let header = header.trim().to_ascii_lowercase();
        if let Some(bounds) = header.strip_prefix("range: bytes=") {
            range = bounds
                .split_once('-')
                .and_then(|(from, to)| from.parse().ok().zip(to.parse().ok()));
        }
        if let Some(text) = header.strip_prefix("content-length:") {
            length = text.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok();
    let under_way = serving.fetch_add(1, Ordering::SeqCst) + 1;
    let _serving = Serving(serving);
    let request = {
        let mut log = log.lock().expect("the log");
        let request = Request {
            method,
            target,
            range,
            index: log.len(),
            under_way,
        };
        log.push(request.clone());
        request
    };
    let mut reply = handler(&request);
    while let Reply::Later(wait, then) = reply {
        tokio::time::sleep(wait).await;
        reply = *then;
    }
    let (status, headers, body, sent) = match reply {
        Reply::Later(..) => return,
        Reply::Silence => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            return;
        }
        Reply::Answer(status, headers, body) => {
            let sent = body.len();
            (status, headers, body, sent)
        }
        Reply::Cut(status, headers, body, sent) => (status, headers, body, sent),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Text\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.ok();
    if request.method != "HEAD" {
        stream.write_all(&body[..sent]).await.ok();
    }
    stream.shutdown().await.ok();
}

/// A bucket at the server, its keys below `top/`.
pub(crate) fn bucket(server: &Server) -> OriginSpec {
    let text = |(key, value): (&str, String)| (key.to_owned(), value);
    OriginSpec {
        prefix: path("data"),
        uri: "s3://bucket/top".to_owned(),
        options: BTreeMap::from(
            [
                ("endpoint", format!("http://{}", server.address)),
                ("allow_http", "true".to_owned()),
                ("skip_signature", "true".to_owned()),
            ]
            .map(text),
        ),
    }
}

/// Serves `content` under an `ETag`, with ranges.
pub(crate) fn content(request: &Request, tag: &str, content: &[u8]) -> Reply {
    let tag = format!("etag: \"{tag}\"\r\n");
    match request.range {
        Some((from, to)) => {
            let to = to.min(content.len() - 1);
            let size = content.len();
            let headers = format!("{tag}content-range: bytes {from}-{to}/{size}\r\n");
            Reply::Answer(206, headers, content[from..=to].to_vec())
        }
        None => Reply::Answer(200, tag, content.to_vec()),
    }
}
