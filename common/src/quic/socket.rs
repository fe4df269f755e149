//! The UDP socket under an endpoint: its buffers, and how much goes through it in one call.

use super::error::QuicError;
use super::offload;
use super::pacer::{Pacer, counted};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use socket2::{Domain, Protocol, Socket, Type};
use std::future::Future as _;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::time::{Instant, Sleep, sleep_until};

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
    warn_when_denied(receive_buffer_bytes, send_buffer_bytes, buffer_bytes);
    Ok(Bound { socket: socket.into(), receive_buffer_bytes })
}

static WARNED: AtomicBool = AtomicBool::new(false);

/// Linux doubles what it is asked for, to pay for its own bookkeeping, and reports the double.
const fn usable(reported: usize) -> usize {
    if cfg!(target_os = "linux") { reported / 2 } else { reported }
}

fn warn_when_denied(receive: usize, send: usize, wanted: usize) {
    if receive.min(send) < wanted && !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!("{}", denied(receive, send, wanted));
    }
}

fn denied(receive: usize, send: usize, wanted: usize) -> String {
    format!(
        "the host gives UDP buffers of {receive} bytes to receive and {send} to send, {wanted} are \
         wanted; packets may be lost under load. As root: \
         sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}"
    )
}

/// A cap on what leaves, shared by every endpoint that gets a clone of it.
#[derive(Clone, Debug)]
pub struct Egress {
    pacer: Arc<Mutex<Pacer>>,
    megabits: f64,
}

impl Egress {
    /// At most `megabits` (10⁶ bits) per second, IP and UDP headers included.
    pub fn new(megabits: f64) -> Self {
        Self { pacer: Arc::new(Mutex::new(Pacer::new(megabits))), megabits }
    }

    /// A panic while it is locked cannot leave it half changed: it is one instant.
    fn pacer(&self) -> MutexGuard<'_, Pacer> {
        self.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready_at(&self) -> Instant {
        Instant::from_std(self.pacer().ready_at(Instant::now().into_std()))
    }
}

impl PartialEq for Egress {
    fn eq(&self, other: &Self) -> bool {
        self.megabits.total_cmp(&other.megabits).is_eq()
    }
}

impl Eq for Egress {}

/// A socket of the tokio runtime with clamped segments and, where there is one, a cap.
#[derive(Debug)]
pub(super) struct ClampedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    transmit_segments_max: usize,
    egress: Option<Egress>,
}

impl ClampedSocket {
    /// Wraps a socket for packets of at most `mtu` bytes. Call it inside a runtime.
    pub(super) fn wrap(
        socket: std::net::UdpSocket,
        mtu: u16,
        egress: Option<Egress>,
    ) -> io::Result<Arc<Self>> {
        let inner = TokioRuntime.wrap_udp_socket(socket)?;
        let offered = if offload::works() { inner.max_transmit_segments() } else { 1 };
        let paced = egress.as_ref().map_or(offered, |egress| egress.pacer().segments(mtu));
        let transmit_segments_max = transmit_segments(offered.min(paced), mtu);
        Ok(Arc::new(Self { inner, transmit_segments_max, egress }))
    }
}

fn transmit_segments(inner: usize, mtu: u16) -> usize {
    inner.min(UDP_PAYLOAD_BYTES_MAX / usize::from(mtu)).max(1)
}

/// Waits for the socket, then for the cap.
#[derive(Debug)]
struct CappedPoller {
    socket: Pin<Box<dyn UdpPoller>>,
    egress: Egress,
    timer: Pin<Box<Sleep>>,
}

impl UdpPoller for CappedPoller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.socket.as_mut().poll_writable(cx))?;
        let ready_at = self.egress.ready_at();
        if ready_at <= Instant::now() {
            return Poll::Ready(Ok(()));
        }
        if self.timer.deadline() != ready_at {
            self.timer.as_mut().reset(ready_at);
        }
        // When the time has come meanwhile, sending decides: it asks the cap again.
        self.timer.as_mut().poll(cx).map(Ok)
    }
}

impl AsyncUdpSocket for ClampedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let socket = Arc::clone(&self.inner).create_io_poller();
        match &self.egress {
            None => socket,
            Some(egress) => {
                let timer = Box::pin(sleep_until(Instant::now()));
                Box::pin(CappedPoller { socket, egress: egress.clone(), timer })
            }
        }
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(egress) = &self.egress else { return self.inner.try_send(transmit) };
        let now = Instant::now().into_std();
        let bytes = counted(transmit.contents.len(), transmit.segment_size, transmit.destination);
        // One lock for asking and paying: connections that share the cap cannot both pass.
        let mut pacer = egress.pacer();
        if pacer.ready_at(now) > now {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.inner.try_send(transmit)?;
        pacer.take(now, bytes).map_err(|_| io::ErrorKind::WouldBlock.into())
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
    fn denied_buffers_are_told_with_the_command_that_helps() {
        assert_eq!(
            denied(212_992, 4_194_304, 4_194_304),
            "the host gives UDP buffers of 212992 bytes to receive and 4194304 to send, 4194304 are \
             wanted; packets may be lost under load. As root: \
             sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304"
        );
    }

    /// A socket under a cap, and what to send through it: 1222 + 28 bytes.
    fn capped(megabits: f64, test: impl AsyncFnOnce(Arc<ClampedSocket>, Transmit<'_>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let sink = std::net::UdpSocket::bind(local).unwrap();
        let destination = sink.local_addr().unwrap();
        let contents = &[0; 1222];
        let transmit =
            Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None };
        runtime.block_on(async {
            let bound = bind(local, 64 << 10).unwrap();
            let egress = Some(Egress::new(megabits));
            test(ClampedSocket::wrap(bound.socket, 1452, egress).unwrap(), transmit).await;
        });
    }

    #[test]
    fn what_the_cap_has_no_room_for_waits_and_nobody_spins() {
        // A datagram takes 1000 s.
        capped(1e-5, async |socket, transmit| {
            assert_eq!(socket.max_transmit_segments(), 1);
            let mut poller = Arc::clone(&socket).create_io_poller();
            std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx)).await.unwrap();
            socket.try_send(&transmit).unwrap();
            let again = socket.try_send(&transmit).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(poller.as_mut().poll_writable(&mut cx).is_pending());
        });
    }

    #[test]
    fn a_timer_wakes_who_waits_for_the_cap() {
        // A datagram takes 2 ms.
        capped(5.0, async |socket, transmit| {
            let mut poller = Arc::clone(&socket).create_io_poller();
            let start = Instant::now();
            for _ in 0..21 {
                while socket.try_send(&transmit).is_err() {
                    std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx)).await.unwrap();
                }
            }
            // Less 20 ms that a late timer may catch up with. No later bound: hosts may be slow.
            assert!(start.elapsed() >= std::time::Duration::from_millis(20));
        });
    }

    #[test]
    fn a_socket_says_what_the_kernel_gave_it() {
        let bound = bind(SocketAddr::from(([127, 0, 0, 1], 0)), 64 << 10).unwrap();
        assert!(bound.receive_buffer_bytes >= 64 << 10, "{bound:?}");
    }
}
