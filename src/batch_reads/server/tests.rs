use super::super::memory::tests::memory;
use super::*;
use crate::waiting::eventually;
use bytes::BufMut;
use copperfs_metrics::Registry;
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files whose names are their sizes. `secret` may not be read, `fails` fails, `hangs` hangs, and `short` ends early.
#[derive(Clone, Default)]
struct Sizes {
    /// Reads that hang.
    hanging: Arc<AtomicUsize>,
}

struct Hanging(Arc<AtomicUsize>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(|at| u8::try_from(at % 251).unwrap()).collect()
}

impl FileSource for Sizes {
    type File = (String, u64);

    fn is_root(&self, directory: &OwnedFd) -> bool {
        rustix::fs::fstat(directory).is_ok_and(|status| status.st_mode & 0o170_000 == 0o040_000)
    }

    async fn open(
        &self,
        client: &Credentials,
        paths: &[&ItemPath],
    ) -> Vec<Result<(String, u64), Errno>> {
        assert_eq!(client.pid, std::process::id());
        assert_eq!(client.uid, rustix::process::geteuid().as_raw());
        let open = |path: &&ItemPath| {
            let name = String::from_utf8(path.as_bytes().to_vec()).unwrap();
            match name.as_str() {
                "secret" => Err(Errno::ACCESS),
                _ => Ok((name.clone(), name.parse().unwrap_or(100))),
            }
        };
        paths.iter().map(open).collect()
    }

    fn size(file: &(String, u64)) -> u64 {
        file.1
    }

    async fn read(&self, file: &(String, u64), range: Range<u64>) -> Result<Vec<Bytes>, Errno> {
        match file.0.as_str() {
            "fails" => return Err(Errno::IO),
            "short" => return Ok(vec![Bytes::from_static(b"x")]),
            "hangs" => {
                self.hanging.fetch_add(1, Ordering::SeqCst);
                let _hanging = Hanging(Arc::clone(&self.hanging));
                std::future::pending::<()>().await;
            }
            _ => {}
        }
        let bytes = content(range);
        Ok(bytes.chunks(1000).map(Bytes::copy_from_slice).collect())
    }
}

/// A client with blocking calls.
struct Client {
    socket: OwnedFd,
    memory: OwnedFd,
}

const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const MEMORY: u64 = 16 << 20;

fn connect(name: &str) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

fn root() -> OwnedFd {
    open_root(OFlags::DIRECTORY)
}

fn open_root(flags: OFlags) -> OwnedFd {
    rustix::fs::open("/", flags, Mode::empty()).unwrap()
}

fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut answer = vec![0; 1 << 16];
    let flags = rustix::net::RecvFlags::empty();
    let (len, _) = rustix::net::recv(socket, &mut answer[..], flags).unwrap_or((0, 0));
    answer.truncate(len);
    answer
}

/// Sends a hello with these descriptors. Returns the answer, which is empty if the connection was closed.
fn try_hello(socket: &OwnedFd, text: &[u8], files: &[&OwnedFd]) -> Vec<u8> {
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let text = [IoSlice::new(text)];
    match rustix::net::sendmsg(socket, &text, &mut ancillary, SendFlags::NOSIGNAL) {
        Ok(_) => receive(socket),
        Err(Errno::PIPE) => Vec::new(),
        Err(errno) => panic!("{errno}"),
    }
}

const HELLO: &[u8] = b"copperfs\x01\0\0\0";

impl Client {
    fn new(name: &str) -> Self {
        let (socket, memory) = (connect(name), memory(MEMORY, SEALED));
        let answer = try_hello(&socket, HELLO, &[&memory, &root()]);
        assert_eq!(answer, [1, 0, 0, 0, 0, 0, 0, 0]);
        Self { socket, memory }
    }

    fn send(&self, message: &[u8]) {
        rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL).unwrap();
    }

    /// Asks for whole files. Returns errno, offset and bytes of each.
    fn ask(&self, region: Range<u64>, names: &[&str]) -> Vec<(i32, u64, Vec<u8>)> {
        self.send(&request(region, names));
        let answer = receive(&self.socket);
        let mut from = &answer[..];
        use bytes::Buf;
        assert_eq!(from.get_u64_le(), 9);
        assert_eq!(from.get_u32_le() as usize, names.len());
        let each = names.iter().map(|_| {
            let (errno, at, len) = (from.get_i32_le(), from.get_u64_le(), from.get_u64_le());
            let mut bytes = vec![0; usize::try_from(len).unwrap()];
            rustix::io::pread(&self.memory, &mut bytes[..], at).unwrap();
            (errno, at, bytes)
        });
        each.collect()
    }
}

fn request(region: Range<u64>, names: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u64_le(9);
    bytes.put_u64_le(region.start);
    bytes.put_u64_le(region.end - region.start);
    bytes.put_u32_le(u32::try_from(names.len()).unwrap());
    for name in names {
        bytes.put_u64_le(0);
        bytes.put_u64_le(u64::MAX);
        bytes.put_u16_le(u16::try_from(name.len()).unwrap());
        bytes.put_slice(name.as_bytes());
    }
    bytes
}

/// Serves [`Sizes`], and runs `test` on another thread.
fn with_server(test: impl FnOnce(&str, &Sizes) + Send + 'static) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!(
        "copperfs-test-{}-{number}{SOCKET_SUFFIX}",
        std::process::id()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async move {
        let sizes = Sizes::default();
        let registry = Registry::default();
        let scope = registry.scope("batch_reads");
        let serving = BatchReads::serve((&name, &[]), sizes.clone(), |_| true, &scope).unwrap();
        tokio::task::spawn_blocking(move || test(&name, &sizes))
            .await
            .unwrap();
        drop(serving);
    });
}

#[test]
fn a_batch_is_written_file_by_file() {
    with_server(|name, _| {
        let client = Client::new(name);
        let names = ["10", "0", "secret", "300000", "fails", "9000000", "short"];
        let answers = client.ask(1000..MEMORY, &names);
        let errnos: Vec<i32> = answers.iter().map(|one| one.0).collect();
        assert_eq!(errnos, [0, 0, 13, 0, 5, 0, 5]);
        let mut end = 1000;
        for (at, size) in [(0, 10), (1, 0), (3, 300_000), (5, 9_000_000)] {
            assert!(answers[at].2 == content(0..size), "{size}");
            assert!(answers[at].1 >= end && answers[at].1.is_multiple_of(64));
            end = answers[at].1 + size;
        }
        // A file that does not fit is left out, and the files behind it may fit.
        let answers = client.ask(0..1000, &["900", "100", "30"]);
        let errnos: Vec<i32> = answers.iter().map(|one| one.0).collect();
        assert_eq!(errnos, [0, Errno::NOSPC.raw_os_error(), 0]);
        assert!(answers[2].2 == content(0..30));
    });
}

#[test]
fn strangers_are_not_served() {
    with_server(|name, _| {
        let good = memory(MEMORY, SEALED);
        let small = memory(MEMORY, SealFlags::empty());
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let refused = |files: &[&OwnedFd]| {
            let socket = connect(name);
            let answer = try_hello(&socket, HELLO, files);
            // An errno, and then the end.
            assert!(answer.is_empty() || answer[4..] != [0; 4], "{answer:?}");
            assert!(receive(&socket).is_empty());
        };
        refused(&[&good, &file]);
        refused(&[&small, &root()]);
        refused(&[&root(), &good]);
        // Which the kernel gives without asking whether the mount is open to its opener.
        refused(&[&good, &open_root(OFlags::PATH)]);
        refused(&[&good]);
        refused(&[&good, &root(), &root()]);
        let socket = connect(name);
        assert!(try_hello(&socket, b"copperfs\x02\0\0\0", &[&good, &root()]).is_empty());
        // Nonsense ends the connection of its sender.
        for nonsense in [
            b"nonsense".to_vec(),
            request(0..MEMORY + 1, &["1"]),
            request(0..MEMORY, &["../1"]),
            vec![0; REQUEST_BYTES_MAX + 1],
        ] {
            let client = Client::new(name);
            client.send(&nonsense);
            assert!(receive(&client.socket).is_empty());
        }
        let client = Client::new(name);
        assert_eq!(client.ask(0..MEMORY, &["5"])[0].0, 0);
    });
}

#[test]
fn a_client_that_ends_cancels_its_batch() {
    with_server(|name, sizes| {
        let client = Client::new(name);
        client.send(&request(0..MEMORY, &["hangs", "hangs"]));
        let until = |count| {
            eventually(Duration::from_secs(5), format!("{count} hang"), || {
                sizes.hanging.load(Ordering::SeqCst) == count
            });
        };
        until(2);
        // Another client is served meanwhile.
        let other = Client::new(name);
        assert_eq!(other.ask(0..MEMORY, &["7"])[0].2, content(0..7));
        drop(client);
        until(0);
        // The same with a request behind it, which is never read.
        let client = Client::new(name);
        client.send(&request(0..MEMORY, &["hangs"]));
        until(1);
        client.send(&request(0..MEMORY, &["5"]));
        drop(client);
        until(0);
    });
}

#[test]
fn places_are_bounded_for_each_user_and_given_back() {
    let mut places = Places::default();
    let most = SHARED_BYTES_OF_USER_MAX / 4;
    let mut take = |user, bytes| places.take(user) && places.take_bytes(user, bytes);
    assert!((0..4).all(|_| take(1, most)));
    assert!(!take(1, 1));
    assert!((0..4).all(|_| take(2, most)));
    assert!(!take(3, 1), "all users together");
    // Those that found no room leave.
    places.give_back(1, 0);
    places.give_back(3, 0);
    places.give_back(1, most);
    assert!(places.take(3) && places.take_bytes(3, most));
    for user in [1, 1, 1, 2, 2, 2, 2, 3] {
        places.give_back(user, most);
    }
    assert_eq!((places.all.bytes, places.of_users.len()), (0, 0));
    for _ in 0..CLIENTS_OF_USER_MAX {
        assert!(places.take(1));
    }
    assert!(!places.take(1));
    let others = (2..).flat_map(|user| [user; CLIENTS_OF_USER_MAX]);
    for user in others.take(CLIENTS_MAX - CLIENTS_OF_USER_MAX) {
        assert!(places.take(user));
    }
    assert!(!places.take(1000), "all users together");
    assert_eq!(places.all.clients, CLIENTS_MAX);
}

/// Connections without a hello take the places of their user, and no more.
#[test]
fn silent_connections_are_bounded() {
    with_server(|name, _| {
        let silent: Vec<OwnedFd> = (0..CLIENTS_OF_USER_MAX).map(|_| connect(name)).collect();
        eventually(Duration::from_secs(5), "there is no place", || {
            receive(&connect(name)).is_empty()
        });
        drop(silent);
        eventually(Duration::from_secs(5), "there is room again", || {
            let (socket, memory) = (connect(name), memory(MEMORY, SEALED));
            try_hello(&socket, HELLO, &[&memory, &root()]) == [1, 0, 0, 0, 0, 0, 0, 0]
        });
    });
}
