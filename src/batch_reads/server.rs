//! Clients and their batches.

use super::access::Credentials;
use super::memory::SharedMemory;
use super::message::{
    HELLO_BYTES, Outcome, REQUEST_BYTES_MAX, Request, WantedFile, check_hello, hello_answer,
};
use super::socket::{Accepted, Connection, Listener};
use bytes::Bytes;
use copperfs_metrics::{Counter, Scope, Unit};
use copperfs_overlay::ItemPath;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// The end of the socket's name, behind the name of the users' socket.
pub const SOCKET_SUFFIX: &str = ".files";

/// Clients of one user: a node with eight accelerators has up to a hundred processes that load data. Those count too
/// that have not said hello yet.
const CLIENTS_OF_USER_MAX: usize = 128;
/// Clients of all users.
const CLIENTS_MAX: usize = 512;
/// Memory that all clients share, and that those of one user do.
const SHARED_BYTES_MAX: u64 = 4 << 30;
const SHARED_BYTES_OF_USER_MAX: u64 = 2 << 30;
/// How long a client may take for its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Files of one batch that are read at a time, and their bytes.
const READ_AT_ONCE: usize = 64;
const BYTES_AT_ONCE: usize = 8 << 20;
/// Bytes of one file that are read at a time.
const STEP_BYTES: u64 = 4 << 20;
/// Where the bytes of a file begin: at a multiple of this.
const ALIGNMENT: u64 = 64;
/// Bytes that are copied on the runtime's thread; more are copied on another one.
const COPIED_HERE_MAX: u64 = 256 << 10;

/// The files that clients may read.
pub trait FileSource: Send + Sync + 'static {
    /// An open file.
    type File: Send + Sync + 'static;

    /// Whether `directory` is the root of a mount with these files. May block.
    fn is_root(&self, directory: &OwnedFd) -> bool;

    /// Opens the files at `paths` for `client`, in their order. The error of a file is `EACCES` if the client's user may
    /// not read it, or what prevents it from being read here.
    fn open(
        &self,
        client: &Credentials,
        paths: &[&ItemPath],
    ) -> impl Future<Output = Vec<Result<Self::File, Errno>>> + Send;

    /// The size of an open file in bytes.
    fn size(file: &Self::File) -> u64;

    /// Returns the bytes `range` of an open file, within its size.
    ///
    /// # Errors
    /// What prevents them from being read here.
    fn read(
        &self,
        file: &Self::File,
        range: Range<u64>,
    ) -> impl Future<Output = Result<Vec<Bytes>, Errno>> + Send;
}

/// Serves clients until it is dropped.
#[derive(Debug)]
pub struct BatchReads(JoinHandle<()>);

impl Drop for BatchReads {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct Counters {
    clients: Counter,
    batches: Counter,
    files: Counter,
    bytes: Counter,
    declined: Counter,
}

struct Shared<S> {
    source: S,
    places: Mutex<Places>,
    counters: Counters,
}

/// The clients of all users, and their memory.
#[derive(Debug, Default)]
struct Places {
    all: Taken,
    of_users: HashMap<u32, Taken>,
}

/// Clients, and the bytes that they share.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    clients: usize,
    bytes: u64,
}

impl Places {
    /// Takes a place for a client, which shares nothing yet. Returns `false` if there is none.
    fn take(&mut self, user: u32) -> bool {
        let of_user = self.of_users.get(&user).copied().unwrap_or_default();
        if of_user.clients >= CLIENTS_OF_USER_MAX || self.all.clients >= CLIENTS_MAX {
            return false;
        }
        self.all.clients += 1;
        self.of_users.entry(user).or_default().clients += 1;
        true
    }

    /// Takes room for the memory of a client with a place. Returns `false` if there is none.
    fn take_bytes(&mut self, user: u32, bytes: u64) -> bool {
        let of_user = self.of_users.entry(user).or_default();
        if of_user.bytes + bytes > SHARED_BYTES_OF_USER_MAX
            || self.all.bytes + bytes > SHARED_BYTES_MAX
        {
            return false;
        }
        self.all.bytes += bytes;
        of_user.bytes += bytes;
        true
    }

    fn give_back(&mut self, user: u32, bytes: u64) {
        self.all.clients -= 1;
        self.all.bytes -= bytes;
        if let Some(of_user) = self.of_users.get_mut(&user) {
            of_user.clients -= 1;
            of_user.bytes -= bytes;
            if of_user.clients == 0 {
                self.of_users.remove(&user);
            }
        }
    }
}

/// A client's place, which is given back when it is dropped.
struct Place<S> {
    shared: Arc<Shared<S>>,
    user: u32,
    bytes: u64,
}

impl<S> Place<S> {
    fn take(shared: &Arc<Shared<S>>, user: u32) -> Option<Self> {
        let taken = shared.places.lock().take(user);
        let shared = Arc::clone(shared);
        taken.then(|| Self {
            shared,
            user,
            bytes: 0,
        })
    }

    /// Takes room for the client's memory.
    fn take_bytes(&mut self, bytes: u64) -> Result<(), Errno> {
        match self.shared.places.lock().take_bytes(self.user, bytes) {
            true => {
                self.bytes = bytes;
                Ok(())
            }
            false => Err(Errno::AGAIN),
        }
    }
}

impl<S> Drop for Place<S> {
    fn drop(&mut self) {
        self.shared.places.lock().give_back(self.user, self.bytes);
    }
}

impl BatchReads {
    /// Serves the files of `source` at the abstract name `name`, to the users whose ids `admits` accepts. Each client is
    /// served on one of `lanes`, in turn, or on this runtime if there are none. Declares its counters in `scope`. Must be
    /// called within a runtime.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn serve(
        (name, lanes): (&str, &[Handle]),
        source: impl FileSource,
        admits: impl Fn(u32) -> bool + Send + 'static,
        scope: &Scope,
    ) -> io::Result<Self> {
        let listener = Listener::bind(name)?;
        let counters = Counters::default();
        declare(&counters, scope);
        let shared = Arc::new(Shared {
            source,
            places: Mutex::default(),
            counters,
        });
        let lanes = match lanes {
            [] => vec![Handle::current()],
            lanes => lanes.to_vec(),
        };
        Ok(Self(tokio::spawn(accept(listener, lanes, shared, admits))))
    }
}

fn declare(counters: &Counters, scope: &Scope) {
    use Unit::{Bytes, Count};
    let help = "Clients that have connected for batches of files.";
    scope.counter("clients", Count, help, &counters.clients);
    let help = "Batches of files that clients asked for.";
    scope.counter("batches", Count, help, &counters.batches);
    let help = "Files whose bytes were written into memory of clients.";
    scope.counter("files", Count, help, &counters.files);
    let help = "Bytes written into memory of clients.";
    scope.counter("bytes", Bytes, help, &counters.bytes);
    let help = "Files of batches that clients have to read by their paths.";
    scope.counter("declined", Count, help, &counters.declined);
}

async fn accept<S: FileSource>(
    listener: Listener,
    lanes: Vec<Handle>,
    shared: Arc<Shared<S>>,
    admits: impl Fn(u32) -> bool,
) {
    let mut clients = JoinSet::new();
    let mut next_lane = lanes.iter().cycle();
    loop {
        tokio::select! {
            biased;
            Some(_done) = clients.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok(accepted) => match accepted.credentials() {
                    Ok(client) if admits(client.uid) => match Place::take(&shared, client.uid) {
                        Some(place) => if let Some(lane) = next_lane.next() {
                            clients.spawn_on(converse(place, accepted, client), lane);
                        },
                        None => tracing::debug!(user = client.uid, "too many clients for batches"),
                    },
                    // To other users the mount is closed.
                    _ => drop(accepted),
                },
                Err(error) => {
                    tracing::warn!(%error, "no client can be accepted for batches of files");
                    sleep(Duration::from_secs(1)).await;
                }
            },
        }
    }
}

/// Serves one client until it is gone.
async fn converse<S: FileSource>(mut place: Place<S>, accepted: Accepted, client: Credentials) {
    let (user, process) = (client.uid, client.pid);
    let outcome = match accepted.connect() {
        Ok(connection) => converse_in(&mut place, &connection, &client).await,
        Err(error) => Err(error.to_string()),
    };
    if let Err(reason) = outcome {
        tracing::debug!(user, process, reason, "a client of batches is not served");
    }
}

async fn converse_in<S: FileSource>(
    place: &mut Place<S>,
    connection: &Connection,
    client: &Credentials,
) -> Result<(), String> {
    let shared = &Arc::clone(&place.shared);
    let failed = |error: io::Error| error.to_string();
    let greeted = timeout(HELLO_TIMEOUT, greet(shared, connection)).await;
    let memory = greeted.map_err(|_elapsed| "no hello in time")??;
    let memory = match memory {
        Ok(memory) => Arc::new(memory),
        Err(errno) => {
            connection
                .send(&hello_answer(Err(errno)))
                .await
                .map_err(failed)?;
            return Err(format!("its memory or its directory does not fit: {errno}"));
        }
    };
    let taken = place.take_bytes(memory.bytes());
    connection
        .send(&hello_answer(taken))
        .await
        .map_err(failed)?;
    taken.map_err(|errno| format!("there is no room for its memory: {errno}"))?;
    shared.counters.clients.increment();
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    while let Some(len) = connection.receive(&mut buffer).await.map_err(failed)? {
        let message = buffer.get(..len).ok_or("a request that is too long")?;
        let request = Request::parse(message, memory.bytes()).map_err(|error| error.to_string())?;
        let outcomes = tokio::select! {
            biased;
            outcomes = shared.read_batch(client, &memory, &request) => outcomes,
            // The answer has no reader any more, and a job that was killed may wait for tokens for long.
            () = connection.closed() => return Ok(()),
        };
        let answer = request.answer(&outcomes);
        connection.send(&answer).await.map_err(failed)?;
    }
    Ok(())
}

/// Receives the hello, and checks what comes with it.
async fn greet<S: FileSource>(
    shared: &Arc<Shared<S>>,
    connection: &Connection,
) -> Result<Result<SharedMemory, Errno>, String> {
    let mut hello = [0; HELLO_BYTES];
    let received = connection.receive_with_descriptors(&mut hello).await;
    let received = received.map_err(|error| error.to_string())?;
    let (len, [memory, directory]) = received.ok_or("no memory and directory with the hello")?;
    let hello = hello.get(..len).unwrap_or_default();
    check_hello(hello).map_err(|error| error.to_string())?;
    let shared = Arc::clone(shared);
    // A directory that was opened for reading, and not for its path alone: the kernel has then checked that the mount is
    // open to the client, which may live in another user namespace.
    let is_open = fcntl_getfl(&directory).is_ok_and(|flags| !flags.contains(OFlags::PATH));
    let is_root = move || is_open && shared.source.is_root(&directory);
    let is_root = tokio::task::spawn_blocking(is_root).await;
    Ok(match is_root {
        Ok(true) => SharedMemory::new(&memory),
        _ => Err(Errno::XDEV),
    })
}

/// A file of a batch with a place for its bytes.
struct Placed<'a, F> {
    /// Its number in the request.
    number: usize,
    file: &'a F,
    range: Range<u64>,
    at: u64,
}

impl<S: FileSource> Shared<S> {
    /// Reads the files of `request` into `memory`. May be cancelled.
    async fn read_batch(
        &self,
        client: &Credentials,
        memory: &Arc<SharedMemory>,
        request: &Request,
    ) -> Vec<Outcome> {
        let paths: Vec<&ItemPath> = request.files.iter().map(|wanted| &wanted.path).collect();
        let opened = self.source.open(client, &paths).await;
        let sizes = opened
            .iter()
            .map(|file| file.as_ref().map(S::size).map_err(|errno| *errno));
        let mut outcomes = place(&request.files, sizes, request.region.clone());
        let placed = opened.iter().zip(&request.files).zip(&outcomes).enumerate();
        let placed = placed.filter_map(|(number, ((file, wanted), outcome))| {
            let (file, place) = (file.as_ref().ok()?, outcome.as_ref().ok()?);
            let range = wanted.offset..wanted.offset + (place.end - place.start);
            let at = place.start;
            Some(Placed {
                number,
                file,
                range,
                at,
            })
        });
        let room = Semaphore::new(BYTES_AT_ONCE);
        let reads: Vec<_> = placed
            .map(|placed| self.read_one(memory, placed, &room))
            .collect();
        let mut reads = stream::iter(reads).buffer_unordered(READ_AT_ONCE);
        while let Some((number, outcome)) = reads.next().await {
            if let (Err(errno), Some(of_file)) = (outcome, outcomes.get_mut(number)) {
                *of_file = Err(errno);
            }
        }
        drop(reads);
        self.count(&outcomes);
        outcomes
    }

    /// Reads one file and writes it to its place, when `room` has permits for its bytes. Returns its number too.
    async fn read_one(
        &self,
        memory: &Arc<SharedMemory>,
        placed: Placed<'_, S::File>,
        room: &Semaphore,
    ) -> (usize, Result<(), Errno>) {
        let Placed {
            number,
            file,
            range,
            mut at,
        } = placed;
        let mut start = range.start;
        let copied = async {
            while start < range.end {
                let end = range.end.min(start + STEP_BYTES);
                let len = end - start;
                // Never closed.
                let permits = u32::try_from(len).unwrap_or(u32::MAX);
                let _permit = room.acquire_many(permits).await;
                let pieces = self.source.read(file, start..end).await?;
                let got: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
                if got != len {
                    return Err(Errno::IO);
                }
                write(memory, at, pieces, len).await?;
                (start, at) = (end, at + len);
            }
            Ok(())
        };
        (number, copied.await)
    }

    fn count(&self, outcomes: &[Outcome]) {
        let counters = &self.counters;
        counters.batches.increment();
        for outcome in outcomes {
            match outcome {
                Ok(place) => {
                    counters.files.increment();
                    counters.bytes.add(place.end - place.start);
                }
                Err(_) => counters.declined.increment(),
            }
        }
    }
}

/// Writes `pieces` of `len` bytes to `memory`.
async fn write(
    memory: &Arc<SharedMemory>,
    at: u64,
    pieces: Vec<Bytes>,
    len: u64,
) -> Result<(), Errno> {
    let written = if len <= COPIED_HERE_MAX {
        let written = memory.write(at, &pieces);
        // A batch whose files are all here would keep the thread for a millisecond.
        tokio::task::yield_now().await;
        written
    } else {
        let memory = Arc::clone(memory);
        let write = move || memory.write(at, &pieces);
        tokio::task::spawn_blocking(write).await.unwrap_or(false)
    };
    match written {
        true => Ok(()),
        false => Err(Errno::IO),
    }
}

/// The places in `region` for the files with these `sizes`, one after the other. A file that does not fit gets `ENOSPC`,
/// and those after it are tried.
fn place(
    files: &[WantedFile],
    sizes: impl Iterator<Item = Result<u64, Errno>>,
    region: Range<u64>,
) -> Vec<Outcome> {
    let mut at = region.start;
    let placed = files.iter().zip(sizes).map(|(wanted, size)| {
        let len = wanted.len.min(size?.saturating_sub(wanted.offset));
        let start = at.next_multiple_of(ALIGNMENT);
        let end = start.checked_add(len).filter(|end| *end <= region.end);
        let end = end.ok_or(Errno::NOSPC)?;
        at = end;
        Ok(start..end)
    });
    placed.collect()
}

#[cfg(test)]
mod tests;
