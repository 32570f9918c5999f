//! Clients that hang, that do not read, and that flood the users' socket.

use super::*;
use crate::control::clients::{Clients, Limits, Sender};
use crate::control::link::STALL_TIMEOUT;
use crate::control::server::USERS_LIMITS;
use crate::control::turns::{TURNS_MAX, TURNS_OF_USER_MAX};
use crate::dataset::Catalog;
use crate::dataset::searches::Searches;
use crate::testing::{NamedBytes, manifest};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tokio::net::UnixStream;

const ANSWER_BYTES: usize = 60 << 20;
const STATUS: &[u8] = b"GET /v1/stats HTTP/1.1\r\nhost: x\r\n\r\n";

/// The users' socket of a node, without its listener, so that a test can name the users.
struct Socket {
    node: Arc<Idle>,
    control: Control,
    clients: Clients,
    router: axum::Router,
    _agent: Node,
}

impl Socket {
    fn new(node: Idle, limits: Limits) -> Self {
        let (agent, node) = (Node::start(), Arc::new(node));
        let commands = Arc::clone(&node) as Arc<dyn NodeCommands>;
        let control = Control::new(commands, agent.agent.clone(), served());
        Self {
            node,
            clients: Clients::new(limits),
            router: router(control.clone(), Access::Users),
            control,
            _agent: agent,
        }
    }

    /// A new connection of a user.
    async fn connect(&mut self, user: u32) -> UnixStream {
        let (client, server) = UnixStream::pair().unwrap();
        let peer = Peer {
            user: Some(user),
            ..Peer::default()
        };
        let from = Some(Sender::User(user));
        self.clients.serve(server, &self.router, peer, from).await;
        client
    }

    /// A new connection of a user, over which `request` was sent.
    async fn send(&mut self, user: u32, request: &[u8]) -> UnixStream {
        let mut client = self.connect(user).await;
        client.write_all(request).await.unwrap();
        client
    }

    async fn status(&mut self, user: u32) -> String {
        let mut client = self.send(user, STATUS).await;
        head(&mut client).await
    }
}

/// A request for items that are [`ANSWER_BYTES`] together, without the lengths in front of them.
fn get() -> Vec<u8> {
    post(
        "/v1/content/get",
        &large().0.repeat(ANSWER_BYTES / LARGE_BYTES),
    )
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Reads the head of an answer.
async fn head(client: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Reads until the connection ends, and returns the number of bytes.
async fn rest(client: &mut UnixStream) -> usize {
    let mut bytes = Vec::new();
    // A connection that the server aborts may end with an error.
    drop(client.read_to_end(&mut bytes).await);
    bytes.len()
}

/// Moves tokio's clock. It must not be paused for longer: sockets that wait for each other would make it jump.
async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_client_that_never_reads_its_answer_is_disconnected() {
    let mut socket = Socket::new(Idle::default(), USERS_LIMITS);
    let mut client = socket.send(1, &get()).await;
    let turns = socket.control.large_answers.clone();
    client.readable().await.unwrap();
    for moment in [STALL_TIMEOUT / 2, STALL_TIMEOUT / 4] {
        // The answer has filled the socket when these are answered.
        for _ in 0..10 {
            assert!(socket.status(2).await.starts_with("HTTP/1.1 200"));
        }
        assert_eq!(turns.in_use(), 1);
        skip(moment).await;
    }
    assert_eq!(turns.in_use(), 1);
    skip(STALL_TIMEOUT / 2).await;
    until(SOON, "the turn ends", || turns.in_use() == 0).await;
    let items = socket.node.large_items.load(SeqCst);
    assert_eq!(items, 0, "its items are released");
    assert!(rest(&mut client).await < ANSWER_BYTES, "it is cut short");
}

/// The limit is for a client that takes no byte at all.
#[tokio::test]
async fn a_client_that_reads_with_pauses_gets_its_whole_answer() {
    let mut socket = Socket::new(Idle::default(), USERS_LIMITS);
    let mut client = socket.send(1, &get()).await;
    let head = head(&mut client).await;
    let due = ANSWER_BYTES + size_of::<u32>() * (ANSWER_BYTES / LARGE_BYTES);
    assert!(
        head.contains(&format!("content-length: {due}\r\n")),
        "{head}"
    );
    let mut part = vec![0; ANSWER_BYTES / 4];
    for _ in 0..4 {
        skip(STALL_TIMEOUT - Duration::from_secs(1)).await;
        client.read_exact(&mut part).await.unwrap();
    }
    let mut last = vec![0; due - ANSWER_BYTES];
    client.read_exact(&mut last).await.unwrap();
    let turns = socket.control.large_answers.clone();
    until(SOON, "the turn ends", || turns.in_use() == 0).await;
    client.write_all(STATUS).await.unwrap();
    assert!(self::head(&mut client).await.starts_with("HTTP/1.1 200"));
}

/// A turn lasts until its answer is read, so that answers which are not read wait in the memory of few.
#[tokio::test]
async fn unread_answers_take_no_more_memory_than_their_turns() {
    let mut socket = Socket::new(Idle::default(), USERS_LIMITS);
    let turns = socket.control.large_answers.clone();
    let items = |turns: usize| turns * (ANSWER_BYTES / LARGE_BYTES);
    let mut unread = Vec::new();
    for (user, in_use) in [(1, TURNS_OF_USER_MAX), (2, TURNS_MAX), (3, TURNS_MAX)] {
        for _ in 0..10 {
            unread.push(socket.send(user, &get()).await);
        }
        until(SOON, "turns are in use", || turns.in_use() == in_use).await;
        // Each is answered after the requests that came before it were begun.
        for _ in 0..10 {
            assert!(socket.status(4).await.starts_with("HTTP/1.1 200"));
            assert_eq!(turns.in_use(), in_use);
            assert!(socket.node.large_items.load(SeqCst) <= items(in_use));
        }
    }
    // Those that go make room for those that wait.
    let mut last = unread.pop().unwrap();
    drop(unread);
    assert!(head(&mut last).await.starts_with("HTTP/1.1 200"));
    drop(last);
    until(SOON, "all turns end", || turns.in_use() == 0).await;
    until(SOON, "all items are released", || {
        socket.node.large_items.load(SeqCst) == 0
    })
    .await;
}

/// hyper drops a body of one frame as soon as it has buffered it. That is not the end of the answer.
#[tokio::test]
async fn a_slow_reader_is_busy_until_its_answer_is_written() {
    let limits = Limits {
        all: 4,
        of_sender: 4,
    };
    let mut socket = Socket::new(Idle::default(), limits);
    let request = b"GET /v1/datasets/huge/residency HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut slow = socket.send(1, request).await;
    assert!(head(&mut slow).await.starts_with("HTTP/1.1 200"));
    // Each silent client that comes replaces the one that is idle the longest.
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(socket.connect(2).await);
        // The connection is closed in a task.
        tokio::task::yield_now().await;
    }
    let mut answer = vec![0; HUGE_BYTES];
    slow.read_exact(&mut answer).await.unwrap();
    assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0);
    // After the last byte it is idle like the others. The flush is a moment after the write.
    until(SOON, "it is idle", || socket.clients.busy() == 0).await;
    for _ in 0..4 {
        silent.push(socket.connect(2).await);
    }
    assert_eq!(slow.read(&mut [0; 1]).await.unwrap(), 0);
}

/// Its answer is large, and its connection is free as soon as the client has gone.
#[tokio::test]
async fn a_client_that_goes_gives_its_turn_back() {
    let mut socket = Socket::new(Idle::default(), USERS_LIMITS);
    let turns = socket.control.large_answers.clone();
    let client = socket.send(1, &get()).await;
    until(SOON, "the answer has its turn", || turns.in_use() == 1).await;
    drop(client);
    until(SOON, "the turn ends", || turns.in_use() == 0).await;
}

#[tokio::test]
async fn a_user_with_many_requests_is_refused_more_and_others_are_not() {
    let node = Idle {
        looks: Some(Box::new(|_| std::future::pending().boxed())),
        ..Idle::default()
    };
    let mut socket = Socket::new(node, USERS_LIMITS);
    let look = post("/v1/content/lookup", &[7; 32]);
    let mut busy = Vec::new();
    // A silent connection of the same user is replaced before a request is refused.
    let mut silent = socket.connect(1).await;
    for at in 1..=USERS_LIMITS.of_sender {
        busy.push(socket.send(1, &look).await);
        let clients = &socket.clients;
        until(SOON, "it is being answered", || clients.busy() == at).await;
    }
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap(), 0);
    let mut refused = socket.send(1, STATUS).await;
    let mut answer = String::new();
    refused.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.contains("32 requests of this user"), "{answer}");
    assert!(answer.contains("send this one again"), "{answer}");
    // Clients that are refused and do nothing are not kept for long.
    let mut more = Vec::new();
    for _ in 0..100 {
        more.push(socket.connect(1).await);
    }
    assert!(
        more.pop()
            .unwrap()
            .read(&mut [0; 1])
            .await
            .is_ok_and(|len| len == 0)
    );
    assert!(socket.status(2).await.starts_with("HTTP/1.1 200"));
    // When one of the user's requests has ended, the next is answered.
    busy.pop();
    let clients = &socket.clients;
    until(SOON, "one has ended", || clients.busy() < busy.len() + 1).await;
    assert!(socket.status(1).await.starts_with("HTTP/1.1 200"));
}

/// Look-ups of all sizes from one user, over as many connections as it may have. The runtime of the test has one
/// worker, like that of a daemon on a small node.
#[tokio::test]
async fn a_flood_of_look_ups_of_one_user_delays_no_status_of_another() {
    let entry = NamedBytes {
        path: "a".into(),
        size: 3,
        offset: 0,
        bytes: b"abc".to_vec(),
    };
    let catalog = Arc::new(Catalog::new(manifest(&[entry])));
    // A thousand datasets: the look-ups take minutes together, if the daemon does all of them.
    let datasets = vec![(catalog, Resident::default()); 1000];
    let (searches, found) = (Searches::default(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&found);
    let looks = move |hashes| {
        let (searches, datasets) = (searches.clone(), datasets.clone());
        let count = Arc::clone(&count);
        async move {
            let found = searches.look_up(datasets, hashes).await;
            count.fetch_add(1, SeqCst);
            found
        }
        .boxed()
    };
    let node = Idle {
        looks: Some(Box::new(looks)),
        ..Idle::default()
    };
    let mut socket = Socket::new(node, USERS_LIMITS);
    let mut flood = Vec::new();
    for at in 0..USERS_LIMITS.of_sender {
        // The large ones wait for turns of their bodies, the others have none.
        let hashes = if at % 2 == 0 { 65_536 } else { 2_048 };
        let mut client = socket.connect(1).await;
        flood.push(tokio::spawn(async move {
            let look = post("/v1/content/lookup", &vec![7; 32 * hashes]);
            client.write_all(&look).await.unwrap();
            rest(&mut client).await
        }));
    }
    let turns = socket.control.large_bodies.clone();
    until(SOON, "large look-ups have begun", || {
        turns.in_use() == TURNS_OF_USER_MAX
    })
    .await;
    for _ in 0..10 {
        assert!(socket.status(2).await.starts_with("HTTP/1.1 200"));
    }
    let small = USERS_LIMITS.of_sender / 2;
    assert!(
        found.load(SeqCst) < small,
        "the status came after the look-ups"
    );
    for client in flood {
        client.abort();
    }
}

/// Two requests that each hold the turn of a large body do not wait for each other's.
#[tokio::test]
async fn large_requests_for_large_answers_do_not_block_each_other() {
    let mut socket = Socket::new(Idle::default(), USERS_LIMITS);
    let many = post("/v1/content/get", &abc().0.repeat(60_000));
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = socket.connect(1).await;
        let many = many.clone();
        clients.push(tokio::spawn(async move {
            client.write_all(&many).await.unwrap();
            let head = head(&mut client).await;
            let mut items = vec![0; 60_000 * 7];
            client.read_exact(&mut items).await.unwrap();
            (head, items)
        }));
    }
    for client in clients {
        let (head, items) = client.await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(items.chunks(7).all(|item| item == b"\x03\0\0\0abc"));
    }
}
