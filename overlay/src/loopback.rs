//! Ports of this machine's loopback address, for nodes and servers that are started a moment later.
//!
//! A port that the kernel chooses (port 0) may be taken again between the moment it is found and the
//! moment its user binds it: every socket that binds port 0 gets one of the same range. And a TCP client
//! that tries a port of that range may be connected with itself. A [`Port`] lies outside that range, and is
//! reserved among all that use this module.

use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// Below the ports that the kernel chooses itself (`net.ipv4.ip_local_port_range`, from 32768 by default).
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port of 127.0.0.1 that is free, and that nobody else gets from this module while it is held.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    /// Holds the same port of the other protocol, which stands for this one: so that its user can bind it.
    _reservation: Socket,
}

impl Port {
    /// Finds a UDP port.
    ///
    /// # Errors
    /// No random number, no descriptor, or no port is free.
    pub fn udp() -> io::Result<Self> {
        Self::find(Type::DGRAM, Type::STREAM)
    }

    /// Finds a TCP port.
    ///
    /// # Errors
    /// As [`Port::udp`].
    pub fn tcp() -> io::Result<Self> {
        Self::find(Type::STREAM, Type::DGRAM)
    }

    /// Where its user listens.
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
            // First the reservation: who has it is alone with the wanted port.
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
        let udp: Vec<Port> = (0..200).map(|_| Port::udp().unwrap()).collect();
        let tcp: Vec<Port> = (0..200).map(|_| Port::tcp().unwrap()).collect();
        let all = udp.iter().chain(&tcp);
        let distinct: BTreeSet<SocketAddr> = all.clone().map(Port::address).collect();
        assert_eq!(distinct.len(), 400);
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
    fn a_port_in_use_is_passed_over() {
        let held: Vec<UdpSocket> = (FIRST..FIRST + 100)
            .filter_map(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok())
            .collect();
        let taken: BTreeSet<u16> = held
            .iter()
            .map(|socket| socket.local_addr().unwrap().port())
            .collect();
        let found: Vec<Port> = (0..300).map(|_| Port::udp().unwrap()).collect();
        assert!(
            found
                .iter()
                .all(|port| !taken.contains(&port.address().port()))
        );
    }
}
