//! The UDP socket: large buffers, and at most 64 KiB of segments in one call.

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Binds `address`, with `shared` beside other sockets of this user that share it.
pub(super) fn bind(
    address: SocketAddr,
    buffer_bytes: usize,
    shared: bool,
) -> io::Result<UdpSocket> {
    use rustix::net::sockopt;
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        // Both address families, if the system allows it.
        let _v6_only = socket.set_only_v6(false);
    }
    // The forced form is for root, and exceeds net.core.rmem_max.
    if sockopt::set_socket_recv_buffer_size_force(&socket, buffer_bytes).is_err() {
        socket.set_recv_buffer_size(buffer_bytes)?;
    }
    if sockopt::set_socket_send_buffer_size_force(&socket, buffer_bytes).is_err() {
        socket.set_send_buffer_size(buffer_bytes)?;
    }
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Returns the size of the receive buffer, as the kernel counts it.
pub(super) fn buffer_bytes(socket: &UdpSocket) -> io::Result<usize> {
    socket2::SockRef::from(socket).recv_buffer_size()
}

/// Wraps `socket` for quinn, with datagrams of at most `datagram_bytes`.
pub(super) fn wrap(socket: UdpSocket, datagram_bytes: u16) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    let inner = TokioRuntime.wrap_udp_socket(socket)?;
    let segments_max = usize::from(u16::MAX / datagram_bytes);
    Ok(Arc::new(CappedSocket {
        inner,
        segments_max,
    }))
}

/// A socket with fewer segments in one call. quinn's choice, ten segments of 8,972 bytes, exceeds 64 KiB, and the kernel
/// drops such a send silently.
#[derive(Debug)]
struct CappedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    segments_max: usize,
}

impl AsyncUdpSocket for CappedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments().min(self.segments_max)
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
