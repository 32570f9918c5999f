//! Tells the service manager that started this process about its state, as systemd's `sd_notify(3)` does.
//!
//! The manager passes the address of a datagram socket, and each message is one datagram of lines `KEY=value`. This
//! module formats and sends them. It does not read the environment, and does not decide when the state changes.
//!
//! There are no `WATCHDOG=1` messages: a process of the mount's own watches the daemon, and starts another one when it
//! dies ([`crate::watchdog`]).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable that holds the address: an absolute path, or `@` and a name in the abstract namespace.
pub const VARIABLE: &str = "NOTIFY_SOCKET";

/// How long a message may wait for room in the manager's queue. Afterwards it is lost.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The service manager of this process, if there is one. Without one, messages go nowhere.
#[derive(Debug, Clone, Default)]
pub struct ServiceManager(Option<SocketAddr>);

impl ServiceManager {
    /// Returns the manager that listens at `address`, which is the value of [`VARIABLE`]; `None` stands for none.
    ///
    /// # Errors
    /// It is neither an absolute path nor an abstract name, or is too long.
    pub fn at(address: Option<&OsStr>) -> io::Result<Self> {
        let Some(address) = address else {
            return Ok(Self(None));
        };
        let parsed = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(address),
            _ => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "neither an absolute path nor an abstract name",
            )),
        };
        parsed.map(|address| Self(Some(address)))
    }

    /// Tells that the service is ready. `status` is one line for people.
    ///
    /// # Errors
    /// The manager cannot be reached.
    pub fn ready(&self, status: &str) -> io::Result<()> {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)))
    }

    /// Tells that the service is about to end. `status` is one line for people.
    ///
    /// # Errors
    /// The manager cannot be reached.
    pub fn stopping(&self, status: &str) -> io::Result<()> {
        self.send(&format!("STOPPING=1\nSTATUS={}", one_line(status)))
    }

    fn send(&self, message: &str) -> io::Result<()> {
        let Some(address) = &self.0 else {
            return Ok(());
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        socket.send_to_addr(message.as_bytes(), address).map(drop)
    }
}

/// A path in the text may hold a line break, which would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends one message of each kind to `socket`, which is at `address`, and returns them.
    fn heard(socket: &UnixDatagram, address: &OsStr) -> [String; 2] {
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let manager = ServiceManager::at(Some(address)).unwrap();
        let receive = || {
            let mut bytes = [0; 256];
            let len = socket.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..len].to_vec()).unwrap()
        };
        manager.ready("/a\nMAINPID=1 is mounted").unwrap();
        let ready = receive();
        manager.stopping("unmounting").unwrap();
        [ready, receive()]
    }

    const MESSAGES: [&str; 2] = [
        "READY=1\nSTATUS=/a MAINPID=1 is mounted",
        "STOPPING=1\nSTATUS=unmounting",
    ];

    #[test]
    fn messages_reach_a_socket_with_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        assert_eq!(heard(&socket, path.as_os_str()), MESSAGES);
    }

    #[test]
    fn messages_reach_an_abstract_socket() {
        let name = format!("copperfs-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        assert_eq!(heard(&socket, OsStr::new(&format!("@{name}"))), MESSAGES);
    }

    #[test]
    fn without_a_manager_messages_go_nowhere() {
        let none = ServiceManager::at(None).unwrap();
        none.ready("mounted").unwrap();
        let relative = ServiceManager::at(Some(OsStr::new("notify")));
        assert_eq!(relative.unwrap_err().kind(), io::ErrorKind::Unsupported);
        let dir = tempfile::tempdir().unwrap();
        let gone = ServiceManager::at(Some(dir.path().join("gone").as_os_str())).unwrap();
        assert!(gone.ready("mounted").is_err());
    }
}
