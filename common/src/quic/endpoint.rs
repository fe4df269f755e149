//! Endpoints and connections: listen, dial, accept; the settings of the transport.
//!
//! The settings come from measurements: bytes per packet are the one large lever, a receive window
//! below the socket's buffer removes loss on a busy receiver, and a batch of segments above one UDP
//! payload would never leave the machine.

use super::close::{CloseCode, REASON_BYTES_MAX, close, printable};
use super::congestion;
use super::credentials::{Credentials, role_of};
use super::error::{QuicError, describe};
use super::socket::{ClampedSocket, Egress, bind};
use super::tls::{self, FALLBACK, PROTOCOLS, VERSION};
use crate::blame::Blame;
use crate::config::{Congestion, Link};
use crate::limits::{CONNECTIONS_MAX, FRAME_BODY_BYTES_MAX, FRAMES_IN_FLIGHT_MAX};
use crate::role::Role;
use quinn::crypto::rustls::HandshakeData;
use quinn::{
    Connecting, Connection, Endpoint, EndpointConfig, Incoming, MtuDiscoveryConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use rustls::pki_types::CertificateDer;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Smallest UDP payload QUIC works with (RFC 9000 §14).
pub const MTU_MIN: u16 = 1200;
/// Largest UDP payload that is supported: an Ethernet jumbo frame.
pub const MTU_MAX: u16 = 9000;
/// The payload of a 1500-byte Ethernet frame over IPv6, and below what IPv4 carries.
pub const MTU_DEFAULT: u16 = 1452;
/// Ten segments of this size are just below one UDP payload: the most efficient size on loopback.
pub const MTU_LOOPBACK: u16 = 6500;
/// Streams beyond the frames in flight that a peer may have open: control, and what is just ending.
const STREAMS_SPARE: usize = 8;
/// A receive window is never below this: 160 Mbit/s over a round trip of 50 ms.
pub(super) const RECEIVE_WINDOW_BYTES_MIN: u64 = 1 << 20;
/// Size asked of the host for a socket's buffers.
pub(super) const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Connections that may wait for `accept`.
const INCOMING_MAX: usize = 1024;
/// Connections beyond which a caller must prove its address before anything is kept for it.
const CONNECTIONS_UNPROVEN_MAX: usize = CONNECTIONS_MAX / 4;
/// Addresses of one name that are tried, and how long each has before the next is tried too.
const ADDRESSES_MAX: usize = 8;
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);
/// How long two ends without a common version wait for each other's words.
const FAREWELL: Duration = Duration::from_secs(2);

/// Settings of the transport, each with a measured default.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TransportSettings {
    /// Largest UDP payload in bytes, [`MTU_MIN`]`..=`[`MTU_MAX`].
    pub mtu: u16,
    /// UDP payload the path surely carries, at most `mtu`: packets start with it and never fall
    /// below it; the path is probed for what lies between it and `mtu`.
    pub mtu_known: u16,
    /// Size asked of the host for the socket's send and receive buffers.
    pub socket_buffer_bytes: usize,
    /// Bytes a peer may send ahead of what is read, over all streams of a connection; `None` sizes
    /// it from the receive buffer the host gives.
    pub receive_window_bytes: Option<u64>,
    /// Bytes kept for resending, per connection.
    pub send_window_bytes: u64,
    /// What decides how much is on its way.
    pub congestion: Congestion,
    /// Bytes that may be on their way before the first acknowledgement, where the controller does not
    /// choose by itself.
    pub initial_window_bytes: u64,
    /// Cap on what leaves, shared by every endpoint these settings are used for.
    pub egress: Option<Egress>,
    /// Silence after which a connection is lost.
    pub idle_timeout: Duration,
    /// Silence after which a sign of life is sent.
    pub keep_alive: Duration,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            mtu: MTU_DEFAULT,
            mtu_known: MTU_MIN,
            socket_buffer_bytes: SOCKET_BUFFER_BYTES,
            receive_window_bytes: None,
            // What the frames in flight can fill: their bytes are kept anyway.
            send_window_bytes: (FRAMES_IN_FLIGHT_MAX * FRAME_BODY_BYTES_MAX) as u64,
            congestion: Congestion::default(),
            initial_window_bytes: 1 << 20,
            egress: None,
            idle_timeout: Duration::from_secs(15),
            keep_alive: Duration::from_secs(5),
        }
    }
}

impl TransportSettings {
    /// For peers on the same machine: packets of [`MTU_LOOPBACK`] bytes cost less than half the CPU
    /// time per byte. Both ends need it to gain in both directions; with it on one end all works.
    pub fn loopback() -> Self {
        Self::with_mtu(MTU_LOOPBACK)
    }

    /// The defaults with another `mtu`. Up to [`MTU_DEFAULT`] the path is probed (some clouds carry
    /// less than an Ethernet frame); a larger one is somebody's choice and taken as known.
    pub fn with_mtu(mtu: u16) -> Self {
        let mtu_known = if mtu <= MTU_DEFAULT { MTU_MIN } else { mtu };
        Self { mtu, mtu_known, ..Self::default() }
    }

    /// These with what a node file says under `[link]`.
    #[must_use]
    pub fn with_link(self, link: &Link) -> Self {
        Self { congestion: link.congestion, egress: link.egress_megabits.map(Egress::new), ..self }
    }

    fn check(&self) -> Result<(), QuicError> {
        let rules = [
            (
                (MTU_MIN..=MTU_MAX).contains(&self.mtu),
                ("mtu", u64::from(self.mtu), "it must be 1200 to 9000 bytes"),
            ),
            (
                (MTU_MIN..=self.mtu).contains(&self.mtu_known),
                ("mtu_known", u64::from(self.mtu_known), "it must be 1200 to mtu bytes"),
            ),
            (
                // Below ten packets the first flight may never leave.
                self.initial_window_bytes >= 10 * u64::from(self.mtu),
                ("initial_window_bytes", self.initial_window_bytes, "it must be 10 × mtu or more"),
            ),
            (
                self.keep_alive < self.idle_timeout,
                (
                    "keep_alive",
                    self.keep_alive.as_secs(),
                    "it must be shorter than idle_timeout, best a third of it",
                ),
            ),
            (
                self.receive_window_bytes.is_none_or(|bytes| VarInt::from_u64(bytes).is_ok()),
                (
                    "receive_window_bytes",
                    self.receive_window_bytes.unwrap_or(0),
                    "it must be below 2^62",
                ),
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, (key, got, rule))) => Err(QuicError::Setting { key, got, rule }),
        }
    }

    /// The transport for an endpoint whose socket has a receive buffer of `buffer_bytes`.
    fn transport(&self, buffer_bytes: usize) -> Result<TransportConfig, QuicError> {
        let setup = |what: &str| QuicError::Setup(format!("{what} is out of range"));
        let from_buffer = (buffer_bytes as u64 / 4 * 3).max(RECEIVE_WINDOW_BYTES_MIN);
        let window = VarInt::from_u64(self.receive_window_bytes.unwrap_or(from_buffer))
            .map_err(|_| setup("receive_window_bytes"))?;
        let streams = u32::try_from(FRAMES_IN_FLIGHT_MAX + STREAMS_SPARE)
            .map_err(|_| setup("the number of streams"))?;
        let idle = self.idle_timeout.try_into().map_err(|_| setup("idle_timeout"))?;
        let discovery = (self.mtu_known < self.mtu).then(|| {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery.upper_bound(self.mtu);
            discovery
        });
        let controllers = congestion::factory(self.congestion, self.initial_window_bytes, self.mtu);
        let mut transport = TransportConfig::default();
        transport
            .initial_mtu(self.mtu_known)
            .min_mtu(self.mtu_known)
            .mtu_discovery_config(discovery)
            .receive_window(window)
            .stream_receive_window(window)
            .send_window(self.send_window_bytes)
            // A frame finishes before the next starts.
            .send_fairness(false)
            .max_concurrent_bidi_streams(streams.into())
            .max_concurrent_uni_streams(streams.into())
            .datagram_receive_buffer_size(None)
            .max_idle_timeout(Some(idle))
            .keep_alive_interval(Some(self.keep_alive))
            .congestion_controller_factory(controllers);
        Ok(transport)
    }
}

/// An endpoint that listens for members with one of the `allowed` roles, and can dial as well.
/// Call it inside a tokio runtime; a current-thread one is enough.
///
/// # Errors
/// [`QuicError::PortInUse`], [`QuicError::Bind`], [`QuicError::Setting`], [`QuicError::Setup`].
pub fn server_endpoint(
    listen: SocketAddr,
    credentials: &Credentials,
    allowed: &'static [Role],
    settings: &TransportSettings,
) -> Result<Endpoint, QuicError> {
    endpoint(listen, credentials, Some(allowed), settings, PROTOCOLS)
}

/// An endpoint that only dials, from a port the system chooses, over IPv4 and (where the machine has
/// it) IPv6. Call it inside a tokio runtime.
///
/// # Errors
/// As [`server_endpoint`].
pub fn client_endpoint(
    credentials: &Credentials,
    settings: &TransportSettings,
) -> Result<Endpoint, QuicError> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    endpoint(both, credentials, None, settings, PROTOCOLS).or_else(|error| match error {
        // No IPv6 on this machine.
        QuicError::Bind { .. } => {
            let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            endpoint(v4, credentials, None, settings, PROTOCOLS)
        }
        error => Err(error),
    })
}

/// As [`server_endpoint`], or without `allowed` as [`client_endpoint`], speaking `protocols`.
pub(super) fn endpoint(
    address: SocketAddr,
    credentials: &Credentials,
    allowed: Option<&'static [Role]>,
    settings: &TransportSettings,
    protocols: &[&str],
) -> Result<Endpoint, QuicError> {
    let setup = |error: &dyn std::fmt::Display| QuicError::Setup(error.to_string());
    settings.check()?;
    let bound = bind(address, settings.socket_buffer_bytes)?;
    let transport = Arc::new(settings.transport(bound.receive_buffer_bytes)?);
    let mut config = EndpointConfig::default();
    // What we take, not what we send. A peer may use larger packets than we do: were this smaller,
    // its packets would be cut off and it would never get through.
    config.max_udp_payload_size(MTU_MAX).map_err(|error| setup(&error))?;
    let server = match allowed {
        None => None,
        Some(allowed) => {
            let mut server = tls::server(credentials, allowed, protocols)?;
            server
                .transport_config(Arc::clone(&transport))
                .max_incoming(INCOMING_MAX)
                .incoming_buffer_size(64 << 10)
                .incoming_buffer_size_total(16 << 20);
            Some(server)
        }
    };
    let mut client = tls::client(credentials, protocols)?;
    client.transport_config(transport);
    let socket = ClampedSocket::wrap(bound.socket, settings.mtu, settings.egress.clone())
        .map_err(|error| setup(&error))?;
    let mut endpoint =
        Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime))
            .map_err(|error| setup(&error))?;
    endpoint.set_default_client_config(client);
    Ok(endpoint)
}

/// The next caller of an endpoint, or `None` once the endpoint is closed. Refuses callers by itself
/// while there are [`CONNECTIONS_MAX`] connections; many callers must first prove their address.
///
/// Cancellation-safe. Give the result to [`handshake`] in a task of its own: a slow caller must not
/// hold up the next.
pub async fn accept(endpoint: &Endpoint) -> Option<Incoming> {
    accept_up_to(endpoint, CONNECTIONS_MAX, CONNECTIONS_UNPROVEN_MAX).await
}

/// As [`accept`] with other bounds.
pub(super) async fn accept_up_to(
    endpoint: &Endpoint,
    connections_max: usize,
    unproven_max: usize,
) -> Option<Incoming> {
    loop {
        let incoming = endpoint.accept().await?;
        let open = endpoint.open_connections();
        if open >= connections_max {
            let peer = canonical(incoming.remote_address());
            tracing::warn!(%peer, "caller refused: there are {open} connections already");
            incoming.refuse();
        } else if open >= unproven_max && !incoming.remote_address_validated() {
            // It fails only for proven addresses, which the condition excludes.
            drop(incoming.retry());
        } else {
            return Some(incoming);
        }
    }
}

/// Completes the handshake of a caller: its certificate and role are then checked.
///
/// # Errors
/// [`QuicError`] with the caller's address: certificate refused, no common version, nothing heard
/// within `deadline`. Nothing is left to close.
pub async fn handshake(incoming: Incoming, deadline: Duration) -> Result<Connection, QuicError> {
    let who = format!("caller {}", canonical(incoming.remote_address()));
    let connecting = incoming.accept().map_err(|error| describe(&who, &error, false))?;
    finish(connecting, &who, deadline, false).await
}

/// Dials `address` (`host:port`), where a member with `role` is expected.
///
/// Every address the name has is tried, each a little after the one before; the first that answers
/// wins. A refusal of *our* certificate is not seen here but by whatever uses the connection next,
/// as a lost connection: give that to [`super::describe_close_from`].
///
/// # Errors
/// [`QuicError::Resolve`], [`QuicError::Unanswered`] after `deadline`,
/// [`QuicError::PeerCertificate`], [`QuicError::Version`], and whatever else ended the handshake.
pub async fn connect(
    endpoint: &Endpoint,
    address: &str,
    role: Role,
    deadline: Duration,
) -> Result<Connection, QuicError> {
    let who = format!("{role} at {address}");
    let unanswered = || QuicError::Unanswered { who: who.clone(), seconds: deadline.as_secs_f32() };
    let Ok(result) = timeout(deadline, dial(endpoint, address, role, deadline, &who)).await else {
        return Err(unanswered());
    };
    result.map_err(|error| match error {
        // The idle timeout was shorter than the deadline.
        QuicError::Lost { .. } => unanswered(),
        error => error,
    })
}

async fn dial(
    endpoint: &Endpoint,
    address: &str,
    role: Role,
    deadline: Duration,
    who: &str,
) -> Result<Connection, QuicError> {
    let addresses = resolve(endpoint, address, role).await?;
    let mut waiting = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut failed = None;
    loop {
        if let Some(next) = waiting.next() {
            match endpoint.connect(next, role.dns_name()) {
                Ok(connecting) => {
                    let who = who.to_owned();
                    attempts.spawn(async move { finish(connecting, &who, deadline, true).await });
                }
                Err(error) => {
                    failed = Some(QuicError::Setup(error.to_string()));
                }
            }
        }
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(connection))) => return Ok(connection),
                // Somebody must change something: another address would not help.
                Some(Ok(Err(error))) if error.blame() == Blame::Config => return Err(error),
                Some(Ok(Err(error))) => failed = Some(error),
                Some(Err(error)) => failed = Some(QuicError::Setup(error.to_string())),
                None if waiting.len() == 0 => break,
                None => {}
            },
            () = sleep(NEXT_ADDRESS_AFTER), if waiting.len() > 0 => {}
        }
    }
    Err(failed.unwrap_or_else(|| QuicError::Setup("no address to dial".to_owned())))
}

async fn resolve(
    endpoint: &Endpoint,
    address: &str,
    role: Role,
) -> Result<Vec<SocketAddr>, QuicError> {
    let failed = |detail: String| QuicError::Resolve {
        address: address.to_owned(),
        role: role.as_str(),
        detail,
    };
    let local = endpoint.local_addr().map_err(|error| QuicError::Setup(error.to_string()))?;
    let found: Vec<SocketAddr> = tokio::net::lookup_host(address)
        .await
        .map_err(|error| failed(error.to_string()))?
        .filter(|found| found.is_ipv4() || local.is_ipv6())
        .take(ADDRESSES_MAX)
        .collect();
    match found.iter().find(|found| found.port() == 0) {
        Some(_) => Err(failed("port 0 cannot be dialled".to_owned())),
        None if found.is_empty() => {
            Err(failed("the name has no address of a kind this machine speaks".to_owned()))
        }
        None => Ok(found),
    }
}

async fn finish(
    connecting: Connecting,
    who: &str,
    deadline: Duration,
    dialled: bool,
) -> Result<Connection, QuicError> {
    let connection = timeout(deadline, connecting)
        .await
        .map_err(|_| QuicError::Unanswered {
            who: who.to_owned(),
            seconds: deadline.as_secs_f32(),
        })?
        .map_err(|error| describe(who, &error, dialled))?;
    let protocol = connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok())
        .and_then(|data| data.protocol);
    if protocol.as_deref() == Some(FALLBACK.as_bytes()) {
        return Err(part(&connection, who).await);
    }
    Ok(connection)
}

/// Two ends without a common version tell each other what they speak, then part.
async fn part(connection: &Connection, who: &str) -> QuicError {
    let told = async {
        let mut say = connection.open_uni().await.ok()?;
        say.write_all(VERSION.as_bytes()).await.ok()?;
        say.finish().ok()?;
        let mut listen = connection.accept_uni().await.ok()?;
        let words = listen.read_to_end(REASON_BYTES_MAX).await.ok()?;
        // The other end must have ours before the connection goes.
        drop(say.stopped().await);
        Some(printable(&words))
    };
    let theirs = timeout(FAREWELL, told).await.ok().flatten();
    close(connection, CloseCode::VersionRefused, VERSION);
    QuicError::Version {
        who: who.to_owned(),
        ours: VERSION.to_owned(),
        theirs: theirs.unwrap_or_else(|| "another version".to_owned()),
    }
}

/// The role in a peer's certificate. Our own connections always have one.
pub fn peer_role(connection: &Connection) -> Option<Role> {
    let identity = connection.peer_identity()?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    role_of(chain.first()?)
}

/// A peer's address as people write it (IPv4 inside IPv6 is shown as IPv4).
pub fn peer_address(connection: &Connection) -> SocketAddr {
    canonical(connection.remote_address())
}

pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
