//! Sockets that share one port: that of the node, and one for each of its lanes.
//!
//! The kernel gives each datagram to one of them, by a byte of its QUIC connection identifier, which
//! [`socket_of`] specifies. The side that connects chooses the identifier of the first packets, and so the socket; all
//! later ones have an identifier that this socket's endpoint has made ([`ConnectionIds`]). Other nodes need to
//! know one port only, and a firewall to open one.
//!
//! Only connections from other nodes arrive here. The node connects from ports of its own, for two reasons. A network card
//! may join consecutive datagrams between the same two ports, and the kernel then gives all of them to the socket of the
//! first. And a stateless reset has no connection identifier.

use quinn_proto::{
    ConnectionId, ConnectionIdGenerator, HashedConnectionIdGenerator, InvalidCid,
    RandomConnectionIdGenerator,
};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The bit of an identifier's first byte that asks for a lane.
const LANE_BIT: u8 = 0x80;
/// The bit of a packet's first byte that tells a long header (RFC 9000, section 17.2).
const LONG_HEADER_BIT: u32 = 0x80;
/// The offset of the destination's connection identifier in a packet with a short header, and with a long one.
const SHORT_ID_AT: u32 = 1;
const LONG_ID_AT: u32 = 6;
/// The length of the identifier with which a client begins.
const FIRST_ID_BYTES: usize = 20;

/// Returns the socket for connections whose identifiers begin with `byte`, where 0 is the node's and the others are those
/// of its `lanes`.
fn socket_of(byte: u8, lanes: u8) -> u8 {
    match byte & LANE_BIT != 0 {
        true if lanes > 0 => 1 + (byte & !LANE_BIT) % lanes,
        _ => 0,
    }
}

/// Returns an identifier for the first packets of a connection: to the node, or to one of the peer's lanes, which it takes
/// modulo their number.
pub(super) fn first_id(lane: Option<u8>) -> ConnectionId {
    let random = RandomConnectionIdGenerator::new(FIRST_ID_BYTES).generate_cid();
    let mut bytes = [0; FIRST_ID_BYTES];
    bytes.copy_from_slice(&random);
    bytes[0] = match lane {
        Some(lane) => LANE_BIT | lane,
        None => bytes[0] & !LANE_BIT,
    };
    ConnectionId::new(&bytes)
}

/// Makes the identifiers of one socket's connections.
pub(super) struct ConnectionIds {
    inner: HashedConnectionIdGenerator,
    socket: u8,
    lanes: u8,
}

impl ConnectionIds {
    /// Those of `socket`, of a node with `lanes`. All sockets of a node have the same `key`, so that each of them can send a
    /// stateless reset for identifiers that the node has made before it was restarted, perhaps with another number of lanes.
    pub(super) fn new(key: u64, socket: u8, lanes: u8) -> Self {
        Self {
            inner: HashedConnectionIdGenerator::from_key(key),
            socket,
            lanes,
        }
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        loop {
            // Every second identifier is of the node, and of the others one in `lanes` of each lane.
            let id = self.inner.generate_cid();
            if self.lanes == 0 || socket_of(id[0], self.lanes) == self.socket {
                return id;
            }
        }
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.inner.validate(id)
    }

    fn cid_len(&self) -> usize {
        self.inner.cid_len()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        self.inner.cid_lifetime()
    }
}

/// Binds `address` for a node with `lanes`, each with a buffer of `buffer_bytes`. The node's socket is the first.
pub(super) fn bind(
    address: SocketAddr,
    buffer_bytes: usize,
    lanes: u8,
) -> io::Result<Vec<UdpSocket>> {
    // Alone at first: sockets of another process at this port are an error, although that may share it, too.
    let node = super::socket::bind(address, buffer_bytes, false)?;
    let mut of_lanes = Vec::new();
    if lanes > 0 {
        rustix::net::sockopt::set_socket_reuseport(&node, true)?;
        let bound = node.local_addr()?;
        for _ in 0..lanes {
            of_lanes.push(super::socket::bind(bound, buffer_bytes, true)?);
        }
        attach(&node, &program(lanes))?;
    }
    of_lanes.insert(0, node);
    Ok(of_lanes)
}

/// The program that computes [`socket_of`] for a datagram. One that is too short for an identifier goes to the node.
fn program(lanes: u8) -> [libc::sock_filter; 11] {
    let op = |code: u32, k: u32| jump(code, k, (0, 0));
    let load = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let test = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let alu = libc::BPF_ALU | libc::BPF_K;
    [
        op(load, 0),
        jump(test, LONG_HEADER_BIT, (0, 2)),
        op(load, LONG_ID_AT),
        op(libc::BPF_JMP | libc::BPF_JA, 1),
        op(load, SHORT_ID_AT),
        // Otherwise the last instruction follows: the node's socket.
        jump(test, LANE_BIT.into(), (0, 4)),
        op(alu | libc::BPF_AND, (!LANE_BIT).into()),
        op(alu | libc::BPF_MOD, lanes.into()),
        op(alu | libc::BPF_ADD, 1),
        op(libc::BPF_RET | libc::BPF_A, 0),
        op(libc::BPF_RET | libc::BPF_K, 0),
    ]
}

/// An instruction that skips `then` or `otherwise` further ones, if it is a test.
fn jump(code: u32, k: u32, (then, otherwise): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter {
        // All codes are below 256.
        code: u16::try_from(code).unwrap_or(u16::MAX),
        jt: then,
        jf: otherwise,
        k,
    }
}

/// Has the kernel choose the sockets of the group of `socket` by `program`.
fn attach(socket: &UdpSocket, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        // The kernel does not write to it.
        filter: program.as_ptr().cast_mut(),
    };
    let len = libc::socklen_t::try_from(size_of_val(&program)).unwrap_or(0);
    #[expect(
        unsafe_code,
        reason = "no safe binding of SO_ATTACH_REUSEPORT_CBPF exists"
    )]
    // SAFETY: the kernel reads `len` bytes at the pointer, which are those of `program`, and copies the instructions
    // before it returns; `program.filter` points to `program.len` of them, which are borrowed until then.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            len,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv4Addr};

    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// The number of the socket that got `datagram`.
    fn receiver(sockets: &[UdpSocket], datagram: &[u8]) -> usize {
        let sender = UdpSocket::bind(LOOPBACK).unwrap();
        let to = sockets[0].local_addr().unwrap();
        sender.send_to(datagram, to).unwrap();
        // Loopback delivers within the system call.
        let got: Vec<usize> = (0..sockets.len())
            .filter(|number| {
                sockets[*number].set_nonblocking(true).unwrap();
                sockets[*number].recv(&mut [0; 64]).is_ok()
            })
            .collect();
        assert_eq!(got.len(), 1, "{datagram:?}");
        got[0]
    }

    /// Packets with a long and a short header whose identifier begins with `byte`. The bytes around it would lead to
    /// another socket.
    fn packets(byte: u8) -> [Vec<u8>; 2] {
        let other = byte.wrapping_add(1) ^ LANE_BIT;
        let long = vec![0xc3, 0, 0, 0, 1, 20, byte, other, other];
        let short = vec![0x41, byte, other, other, other, other, other, other];
        [long, short]
    }

    #[test]
    fn the_kernel_chooses_the_socket_of_an_identifier() {
        for lanes in [1, 3, 8] {
            let sockets = bind(LOOPBACK, 1 << 16, lanes).unwrap();
            let mut met = HashSet::new();
            for byte in 0..=u8::MAX {
                let due = socket_of(byte, lanes);
                for packet in packets(byte) {
                    assert_eq!(receiver(&sockets, &packet), usize::from(due), "{byte:#x}");
                }
                met.insert(due);
            }
            assert_eq!(met.len(), usize::from(lanes) + 1);
            // Not QUIC.
            assert_eq!(receiver(&sockets, &[]), 0);
            assert_eq!(receiver(&sockets, &[0xff]), 0);
        }
    }

    #[test]
    fn identifiers_lead_to_the_socket_that_made_them() {
        let key = 7;
        let other = ConnectionIds::new(key, 0, 0);
        for socket in 0..=3 {
            let mut ids = ConnectionIds::new(key, socket, 3);
            for _ in 0..100 {
                let id = ids.generate_cid();
                assert_eq!(socket_of(id[0], 3), socket);
                assert!(other.validate(&id).is_ok(), "each socket can reset it");
            }
        }
        for lane in 0..128 {
            assert_eq!(socket_of(first_id(Some(lane))[0], 8), 1 + lane % 8);
            assert_eq!(socket_of(first_id(Some(lane))[0], 0), 0);
            assert_eq!(socket_of(first_id(None)[0], 8), 0);
        }
    }

    /// Otherwise a second daemon at the same port would get a part of the connections of the first.
    #[test]
    fn a_port_has_one_node_although_its_sockets_share_it() {
        let first = bind(LOOPBACK, 1 << 16, 2).unwrap();
        let address = first[0].local_addr().unwrap();
        for lanes in [0, 2] {
            let second = bind(address, 1 << 16, lanes).unwrap_err();
            assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        }
        drop(first);
        assert_eq!(bind(address, 1 << 16, 2).unwrap().len(), 3);
    }
}
