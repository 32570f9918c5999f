//! Ports of the loopback address, for nodes and servers that start a moment later.
//!
//! A port that the kernel chooses (port 0) may be taken by another socket before its user binds it, because the
//! kernel chooses all such ports from one range. And a TCP client that tries a port of that range may be connected
//! to itself. A [`Port`] is outside that range, and reserved among all users of this module.

use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// Below the ports that the kernel chooses itself (`net.ipv4.ip_local_port_range`, from 32768 by default).
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A free port of 127.0.0.1. No other caller gets it from this module while it is held.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    /// The same port of the other protocol. It stands for the port, whose user can still bind it.
    _reservation: Socket,
}

impl Port {
    /// Reserves a UDP port.
    ///
    /// # Errors
    /// No random number, no descriptor, or no port is free.
    pub fn udp() -> io::Result<Self> {
        Self::find(Type::DGRAM, Type::STREAM)
    }

    /// Reserves a TCP port.
    ///
    /// # Errors
    /// As [`Port::udp`].
    pub fn tcp() -> io::Result<Self> {
        Self::find(Type::STREAM, Type::DGRAM)
    }

    /// The address on which its user listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn find(wanted: Type, other: Type) -> io::Result<Self> {
        let mut random = [0; 2];
        getrandom::fill(&mut random).map_err(io::Error::from)?;
        let start = u16::from_ne_bytes(random) % COUNT;
        for step in 0..COUNT {
            let port = FIRST + (start + step) % COUNT;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            // The reservation comes first: its holder is the only one to try the wanted port.
            let bound = bind(other, address).and_then(|reservation| {
                drop(bind(wanted, address)?);
                Ok(reservation)
            });
            match bound {
                Ok(reservation) => {
                    return Ok(Self {
                        address,
                        _reservation: reservation,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}

fn bind(kind: Type, address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, kind, None)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn ports_are_distinct_and_free_for_their_users() {
        // Few ports: a node of another test that restarts at this moment binds its old port without a reservation.
        let udp: Vec<Port> = (0..20).map(|_| Port::udp().unwrap()).collect();
        let tcp: Vec<Port> = (0..20).map(|_| Port::tcp().unwrap()).collect();
        let all = udp.iter().chain(&tcp);
        let distinct: BTreeSet<SocketAddr> = all.clone().map(Port::address).collect();
        assert_eq!(distinct.len(), 40);
        assert!(
            all.map(|port| port.address().port())
                .all(|port| port < 32_768)
        );
        for port in &udp {
            UdpSocket::bind(port.address()).unwrap();
        }
        for port in &tcp {
            TcpListener::bind(port.address()).unwrap();
        }
    }

    #[test]
    fn a_port_in_use_is_skipped() {
        let held: Vec<UdpSocket> = (FIRST..FIRST + 100)
            .filter_map(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok())
            .collect();
        let taken: BTreeSet<u16> = held
            .iter()
            .map(|socket| socket.local_addr().unwrap().port())
            .collect();
        let ports: Vec<Port> = (0..300).map(|_| Port::udp().unwrap()).collect();
        assert!(
            ports
                .iter()
                .all(|port| !taken.contains(&port.address().port()))
        );
    }
}
