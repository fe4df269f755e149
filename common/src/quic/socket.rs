//! The UDP socket under an endpoint: its buffers, and how much goes through it in one call.

use super::error::QuicError;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// Largest UDP payload of IPv4. A send of several segments is one such payload to the kernel: above
/// it every batch fails with `EMSGSIZE`, nobody is told, and nothing is ever sent.
const UDP_PAYLOAD_BYTES_MAX: usize = 65_507;
/// The receive buffer is payload × segments × 32: ten segments keep it below 3 MiB.
const RECEIVE_SEGMENTS_MAX: usize = 10;

/// A bound socket and the receive buffer the kernel really gave it.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) socket: std::net::UdpSocket,
    pub(super) receive_buffer_bytes: usize,
}

/// Binds a socket with large buffers; warns once per process when the host denies them.
pub(super) fn bind(address: SocketAddr, buffer_bytes: usize) -> Result<Bound, QuicError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => QuicError::PortInUse { address },
        _ => QuicError::Bind { address, source },
    };
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
        .map_err(failed)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false).map_err(failed)?;
    }
    // Denied sizes are not errors: the kernel gives what it may, which is read back.
    drop(socket.set_recv_buffer_size(buffer_bytes));
    drop(socket.set_send_buffer_size(buffer_bytes));
    let receive_buffer_bytes = usable(socket.recv_buffer_size().map_err(failed)?);
    let send_buffer_bytes = usable(socket.send_buffer_size().map_err(failed)?);
    socket.bind(&address.into()).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    warn_when_denied("receive", "rmem_max", receive_buffer_bytes, buffer_bytes, &RECEIVE_WARNED);
    warn_when_denied("send", "wmem_max", send_buffer_bytes, buffer_bytes, &SEND_WARNED);
    Ok(Bound { socket: socket.into(), receive_buffer_bytes })
}

static RECEIVE_WARNED: AtomicBool = AtomicBool::new(false);
static SEND_WARNED: AtomicBool = AtomicBool::new(false);

/// Linux doubles what it is asked for, to pay for its own bookkeeping, and reports the double.
const fn usable(reported: usize) -> usize {
    if cfg!(target_os = "linux") { reported / 2 } else { reported }
}

fn warn_when_denied(what: &str, key: &str, got: usize, wanted: usize, warned: &AtomicBool) {
    if got < wanted && !warned.swap(true, Ordering::Relaxed) {
        tracing::warn!("{}", denied(what, key, got, wanted));
    }
}

fn denied(what: &str, key: &str, got: usize, wanted: usize) -> String {
    format!(
        "the host gives a UDP {what} buffer of {got} bytes, {wanted} are wanted; packets may be lost \
         under load. As root: sysctl -w net.core.{key}={wanted}"
    )
}

/// A socket of the tokio runtime with clamped segments.
#[derive(Debug)]
pub(super) struct ClampedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    transmit_segments_max: usize,
}

impl ClampedSocket {
    /// Wraps a socket for packets of at most `mtu` bytes. Call it inside a runtime.
    pub(super) fn wrap(socket: std::net::UdpSocket, mtu: u16) -> io::Result<Arc<Self>> {
        let inner = TokioRuntime.wrap_udp_socket(socket)?;
        let transmit_segments_max = transmit_segments(inner.max_transmit_segments(), mtu);
        Ok(Arc::new(Self { inner, transmit_segments_max }))
    }
}

fn transmit_segments(inner: usize, mtu: u16) -> usize {
    inner.min(UDP_PAYLOAD_BYTES_MAX / usize::from(mtu)).max(1)
}

impl AsyncUdpSocket for ClampedSocket {
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
        self.transmit_segments_max
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments().min(RECEIVE_SEGMENTS_MAX)
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_never_exceeds_one_udp_payload() {
        for (mtu, segments) in [(1200, 10), (1452, 10), (6500, 10), (6551, 9), (8972, 7), (9000, 7)]
        {
            assert_eq!(transmit_segments(10, mtu), segments, "mtu {mtu}");
            assert!(segments * usize::from(mtu) <= UDP_PAYLOAD_BYTES_MAX);
        }
        assert_eq!(transmit_segments(1, 1200), 1);
    }

    #[test]
    fn a_denied_buffer_is_told_with_the_command_that_helps() {
        assert_eq!(
            denied("receive", "rmem_max", 212_992, 4_194_304),
            "the host gives a UDP receive buffer of 212992 bytes, 4194304 are wanted; packets may be \
             lost under load. As root: sysctl -w net.core.rmem_max=4194304"
        );
    }

    #[test]
    fn a_socket_says_what_the_kernel_gave_it() {
        let bound = bind(SocketAddr::from(([127, 0, 0, 1], 0)), 64 << 10).unwrap();
        assert!(bound.receive_buffer_bytes >= 64 << 10, "{bound:?}");
    }
}
