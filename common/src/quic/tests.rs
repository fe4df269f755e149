//! Two real endpoints on loopback: every refusal is one plain line on both ends.

use super::credentials::Credentials;
use super::endpoint::{accept_up_to, endpoint};
use super::tls::{FALLBACK, PROTOCOLS, VERSION};
use super::*;
use crate::blame::Blame;
use crate::limits::CONTROL_BYTES_MAX;
use crate::role::Role;
use quinn::VarInt;
use quinn::crypto::rustls::QuicClientConfig;
use serde::{Deserialize, Serialize};
use std::future::{Future, ready};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);
const WORKERS: &[Role] = &[Role::Worker];

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum Word {
    Hello(u32),
    Long(Vec<u8>),
}

fn local() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn authority() -> Authority {
    Authority::create("test cluster").unwrap()
}

fn credentials(authority: &Authority, role: Role) -> Credentials {
    let identity = authority.issue(role, "node", 1).unwrap();
    Credentials::from_identity(authority.ca_pem(), &identity).unwrap()
}

/// Credentials that were fine in 2001.
fn expired(authority: &Authority, role: Role) -> Credentials {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let (begin, end) = (then - Duration::from_secs(60), then + Duration::from_secs(60));
    let identity = authority.issue_between(role, "node", begin, end).unwrap();
    Credentials::from_identity_at(authority.ca_pem(), &identity, then)
}

/// Shows a certificate of `shown` and believes those of `trusted`.
fn stranger(trusted: &Authority, shown: &Authority, role: Role) -> Credentials {
    let mut mixed = credentials(trusted, role);
    mixed.identity = credentials(shown, role).identity;
    mixed
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("the test ends in time") })
}

fn listener(credentials: &Credentials) -> (Endpoint, String) {
    let settings = TransportSettings::default();
    let endpoint = server_endpoint(local(), credentials, WORKERS, &settings).unwrap();
    let address = endpoint.local_addr().unwrap().to_string();
    (endpoint, address)
}

fn dialler(credentials: &Credentials) -> Endpoint {
    client_endpoint(credentials, &TransportSettings::default()).unwrap()
}

/// Takes one caller and, if it gets in, waits for the end of its connection.
async fn serve_one(endpoint: &Endpoint) -> QuicError {
    let incoming = accept(endpoint).await.unwrap();
    match handshake(incoming, PATIENCE).await {
        Ok(connection) => describe_close(&connection.closed().await),
        Err(error) => error,
    }
}

/// Dials and, if it gets in, waits for the end of the connection.
async fn call_one(endpoint: &Endpoint, address: &str, role: Role) -> QuicError {
    match connect(endpoint, address, role, PATIENCE).await {
        Ok(connection) => describe_close_from("the server", &connection.closed().await),
        Err(error) => error,
    }
}

/// Lets `client` call `server` and compares both lines (with `A` for the server's address and `C` for
/// the caller's) and whose move it is.
fn refuse(server: &Credentials, client: &Credentials, at_server: &str, at_client: &str) {
    run(async {
        let (listener, address) = listener(server);
        let dialler = dialler(client);
        let (seen, met) =
            tokio::join!(serve_one(&listener), call_one(&dialler, &address, Role::Server));
        let port = dialler.local_addr().unwrap().port();
        assert_eq!(seen.to_string().replace(&format!("127.0.0.1:{port}"), "C"), at_server);
        assert_eq!(met.to_string().replace(&address, "A"), at_client);
        assert_eq!(met.blame(), Blame::Config, "{met}");
        assert!(matches!(seen.blame(), Blame::Peer | Blame::Config), "{seen}");
    });
}

/// A connection between a server and a worker: (server's end, worker's end, both endpoints).
async fn pair(settings: &TransportSettings) -> (Connection, Connection, [Endpoint; 2]) {
    pair_of(settings, settings).await
}

async fn pair_of(
    theirs: &TransportSettings,
    ours: &TransportSettings,
) -> (Connection, Connection, [Endpoint; 2]) {
    let authority = authority();
    let server = credentials(&authority, Role::Server);
    let listener = server_endpoint(local(), &server, WORKERS, theirs).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let dialler = client_endpoint(&credentials(&authority, Role::Worker), ours).unwrap();
    let (server, client) = tokio::join!(
        async { handshake(accept(&listener).await.unwrap(), PATIENCE).await.unwrap() },
        async { connect(&dialler, &address, Role::Server, PATIENCE).await.unwrap() }
    );
    (server, client, [listener, dialler])
}

#[test]
fn two_members_meet_and_know_each_others_role() {
    run(async {
        let (server, client, _endpoints) = pair(&TransportSettings::default()).await;
        assert_eq!(peer_role(&server), Some(Role::Worker));
        assert_eq!(peer_role(&client), Some(Role::Server));
        assert!(peer_address(&server).is_ipv4());
        let accepting = accept_hello::<Word, Word>(&server, PATIENCE);
        let opening = async {
            let (mut tx, rx) = open_control::<Word, Word>(&client).await.unwrap();
            tx.send(&Word::Hello(7)).await.unwrap();
            (tx, rx)
        };
        let (accepted, (mut client_tx, mut client_rx)) = tokio::join!(accepting, opening);
        let (mut server_tx, mut server_rx, hello) = accepted.unwrap();
        assert_eq!(hello, Word::Hello(7));
        server_tx.send(&Word::Long(vec![1; 300_000])).await.unwrap();
        assert_eq!(client_rx.recv().await.unwrap(), Some(Word::Long(vec![1; 300_000])));
        client_tx.finish();
        assert_eq!(server_rx.recv().await.unwrap(), None);
        close(&server, CloseCode::Done, "the job is done");
        assert_eq!(client_rx.recv().await.unwrap(), None, "done is an orderly end");
    });
}

#[test]
fn a_name_with_several_addresses_is_tried_until_one_answers() {
    run(async {
        let authority = authority();
        let (listener, address) = listener(&credentials(&authority, Role::Server));
        let dialler = dialler(&credentials(&authority, Role::Worker));
        let name = address.replace("127.0.0.1", "localhost");
        let (served, met) = tokio::join!(
            async { handshake(accept(&listener).await.unwrap(), PATIENCE).await },
            connect(&dialler, &name, Role::Server, PATIENCE)
        );
        assert!(served.is_ok() && met.is_ok());
    });
}

#[test]
fn a_caller_of_another_authority_is_refused() {
    let (ours, theirs) = (authority(), Authority::create("another cluster").unwrap());
    for theirs in [theirs, authority()] {
        refuse(
            &credentials(&ours, Role::Server),
            &stranger(&ours, &theirs, Role::Worker),
            "caller C: its certificate is refused here: it is not signed by the same CA; both ends \
             need certificates of one `slackline certs`",
            "the server refused our certificate: it is not signed by the same CA; both ends need \
             certificates of one `slackline certs`",
        );
    }
}

#[test]
fn a_listener_of_another_authority_is_refused() {
    let (ours, theirs) = (authority(), authority());
    refuse(
        &credentials(&theirs, Role::Server),
        &credentials(&ours, Role::Worker),
        "caller C refused our certificate: it is not signed by the same CA; both ends need \
         certificates of one `slackline certs`",
        "server at A: its certificate is refused here: it is not signed by the same CA; both ends \
         need certificates of one `slackline certs`",
    );
}

#[test]
fn a_caller_with_the_wrong_role_is_refused() {
    let authority = authority();
    refuse(
        &credentials(&authority, Role::Server),
        &credentials(&authority, Role::Operator),
        "caller C: its certificate is refused here: its role is operator, admitted is \
         worker",
        "the server refused our certificate: its role is operator, admitted is worker",
    );
}

#[test]
fn a_listener_with_the_wrong_role_is_refused() {
    let authority = authority();
    refuse(
        &credentials(&authority, Role::Worker),
        &credentials(&authority, Role::Worker),
        "caller C refused our certificate: its role is worker, admitted is server",
        "server at A: its certificate is refused here: its role is worker, admitted is \
         server",
    );
}

#[test]
fn an_expired_certificate_is_refused_on_either_end() {
    let authority = authority();
    let why = "it expired on 2001-09-09 01:47:40 UTC; renew it with `slackline certs`";
    refuse(
        &credentials(&authority, Role::Server),
        &expired(&authority, Role::Worker),
        &format!("caller C: its certificate is refused here: {why}"),
        &format!("the server refused our certificate: {why}"),
    );
    refuse(
        &expired(&authority, Role::Server),
        &credentials(&authority, Role::Worker),
        &format!("caller C refused our certificate: {why}"),
        &format!("server at A: its certificate is refused here: {why}"),
    );
}

#[test]
fn a_caller_without_a_certificate_is_refused() {
    run(async {
        let authority = authority();
        let (listener, address) = listener(&credentials(&authority, Role::Server));
        let trusted = credentials(&authority, Role::Worker);
        let mut config = rustls::ClientConfig::builder_with_provider(trusted.provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(trusted.roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![VERSION.into()];
        let crypto = QuicClientConfig::try_from(config).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let endpoint = Endpoint::client(local()).unwrap();
        let call = async {
            let dialling =
                endpoint.connect_with(config, address.parse().unwrap(), Role::Server.dns_name());
            match dialling.unwrap().await {
                Ok(connection) => connection.closed().await,
                Err(error) => error,
            }
        };
        let (seen, met) = tokio::join!(serve_one(&listener), call);
        let port = endpoint.local_addr().unwrap().port();
        assert_eq!(
            seen.to_string(),
            format!("caller 127.0.0.1:{port}: its certificate is refused here: none was shown")
        );
        assert_eq!(
            describe_close(&met).to_string(),
            "the peer refused our certificate: none was shown"
        );
    });
}

/// The other version's half of the farewell, written by hand.
async fn part_as(connection: &Connection, version: &str) -> String {
    let mut say = connection.open_uni().await.unwrap();
    say.write_all(version.as_bytes()).await.unwrap();
    say.finish().unwrap();
    let words = connection.accept_uni().await.unwrap().read_to_end(100).await.unwrap();
    connection.closed().await;
    String::from_utf8(words).unwrap()
}

#[test]
fn two_versions_tell_each_other_what_they_speak() {
    run(async {
        let authority = authority();
        let settings = TransportSettings::default();
        let (server, worker) =
            (credentials(&authority, Role::Server), credentials(&authority, Role::Worker));
        // A newer worker calls us.
        let (listener, address) = listener(&server);
        let newer =
            endpoint(local(), &worker, None, &settings, &["slackline/2", FALLBACK]).unwrap();
        let (seen, told) = tokio::join!(serve_one(&listener), async {
            let dialling = newer.connect(address.parse().unwrap(), Role::Server.dns_name());
            part_as(&dialling.unwrap().await.unwrap(), "slackline/2").await
        });
        let port = newer.local_addr().unwrap().port();
        assert_eq!(
            seen.to_string(),
            format!(
                "caller 127.0.0.1:{port} speaks slackline/2, this process speaks slackline/1: run \
                 the same release on both"
            )
        );
        assert_eq!(told, VERSION);
        // We call a newer server.
        let newer =
            endpoint(local(), &server, Some(WORKERS), &settings, &["slackline/2", FALLBACK])
                .unwrap();
        let address = newer.local_addr().unwrap().to_string();
        let dialler = dialler(&worker);
        let (told, met) = tokio::join!(
            async { part_as(&newer.accept().await.unwrap().await.unwrap(), "slackline/2").await },
            call_one(&dialler, &address, Role::Server)
        );
        assert_eq!(
            met.to_string(),
            format!(
                "server at {address} speaks slackline/2, this process speaks slackline/1: run the \
                 same release on both"
            )
        );
        assert_eq!(met.blame(), Blame::Config);
        assert_eq!(told, VERSION);
    });
}

#[test]
fn a_foreign_protocol_is_refused_on_both_ends() {
    run(async {
        let authority = authority();
        let (listener, address) = listener(&credentials(&authority, Role::Server));
        let worker = credentials(&authority, Role::Worker);
        let settings = TransportSettings::default();
        let foreign = endpoint(local(), &worker, None, &settings, &["h3"]).unwrap();
        let (seen, met) =
            tokio::join!(serve_one(&listener), call_one(&foreign, &address, Role::Server));
        for error in [seen, met] {
            let line = error.to_string();
            let tail = "speaks no protocol of slackline that we know, this process speaks \
                        slackline/1: run the same release on both";
            assert!(line.ends_with(tail), "{line}");
        }
    });
}

#[test]
fn nobody_at_an_address_is_told_with_who_was_expected_and_how_long() {
    run(async {
        let deaf = UdpSocket::bind(local()).unwrap();
        let address = deaf.local_addr().unwrap().to_string();
        let dialler = dialler(&credentials(&authority(), Role::Worker));
        let wait = Duration::from_millis(300);
        let error = connect(&dialler, &address, Role::Coordinator, wait).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "nobody answered as coordinator at {address} in 0.3 s: is it running, is UDP open \
                 to it, does the path carry the configured mtu?"
            )
        );
        assert_eq!(error.blame(), Blame::Network);
    });
}

#[test]
fn an_address_that_is_none_is_told() {
    run(async {
        let dialler = dialler(&credentials(&authority(), Role::Worker));
        for address in ["no port here", "127.0.0.1:0", "127.0.0.1:70000"] {
            let line = connect(&dialler, address, Role::Server, PATIENCE).await.unwrap_err();
            let line = line.to_string();
            let head = format!("address {address} of the server does not resolve: ");
            assert!(line.starts_with(&head) && line.len() > head.len(), "{line}");
        }
    });
}

#[test]
fn a_port_in_use_is_one_line_with_the_address() {
    run(async {
        let server = credentials(&authority(), Role::Server);
        let (listener, address) = listener(&server);
        let taken = listener.local_addr().unwrap();
        let error = server_endpoint(taken, &server, WORKERS, &TransportSettings::default());
        assert_eq!(
            error.unwrap_err().to_string(),
            format!("cannot listen on {address}: the port is in use by another process")
        );
    });
}

#[test]
fn a_setting_outside_its_range_is_refused_before_any_socket() {
    let check = |line: &str, change: fn(&mut TransportSettings)| {
        let mut settings = TransportSettings::default();
        change(&mut settings);
        let worker = credentials(&authority(), Role::Worker);
        let error = run(async { client_endpoint(&worker, &settings).unwrap_err() });
        assert_eq!(error.to_string(), format!("transport setting {line}"));
        assert_eq!(error.blame(), Blame::Config);
    };
    check("mtu is 9001: it must be 1200 to 9000 bytes", |s| s.mtu = 9001);
    check("mtu is 1199: it must be 1200 to 9000 bytes", |s| s.mtu = 1199);
    check("mtu_known is 1453: it must be 1200 to mtu bytes", |s| s.mtu_known = 1453);
    check("initial_window_bytes is 14519: it must be 10 × mtu or more", |s| {
        s.initial_window_bytes = 14_519;
    });
    check("keep_alive is 15: it must be shorter than idle_timeout, best a third of it", |s| {
        s.keep_alive = s.idle_timeout;
    });
}

#[test]
fn callers_beyond_the_bound_are_refused() {
    run(async {
        let authority = authority();
        let (listener, address) = listener(&credentials(&authority, Role::Server));
        let dialler = dialler(&credentials(&authority, Role::Worker));
        // The first caller must prove its address (a bound of 0), the second is one too many.
        let serve = async {
            let first = accept_up_to(&listener, 1, 0).await.unwrap();
            assert!(first.remote_address_validated());
            let first = handshake(first, PATIENCE).await.unwrap();
            tokio::select! {
                _ = accept_up_to(&listener, 1, 0) => panic!("the second caller got in"),
                lost = first.closed() => describe_close(&lost),
            }
        };
        let call = async {
            let first = connect(&dialler, &address, Role::Server, PATIENCE).await.unwrap();
            let second = connect(&dialler, &address, Role::Server, PATIENCE).await.unwrap_err();
            close(&first, CloseCode::Shutdown, "SIGTERM");
            second
        };
        let (first, second) = tokio::join!(serve, call);
        assert_eq!(
            second.to_string(),
            format!("server at {address} refuses more connections than it has; try again later")
        );
        assert_eq!(first.to_string(), "the peer closed the connection: shutting down (SIGTERM)");
    });
}

#[test]
fn rubbish_on_the_port_does_not_disturb_another_peer() {
    run(async {
        let (server, client, [listener, _dialler]) = pair(&TransportSettings::default()).await;
        let vandal = UdpSocket::bind(local()).unwrap();
        let target = listener.local_addr().unwrap();
        let (mut tx, _rx) = open_control::<Word, Word>(&client).await.unwrap();
        tx.send(&Word::Hello(0)).await.unwrap();
        let (_tx, mut rx, _) = accept_hello::<Word, Word>(&server, PATIENCE).await.unwrap();
        let mut state = 1u32;
        for round in 1..200 {
            // Random bytes, of which every other datagram claims to open a QUIC version 1 connection.
            let mut datagram: Vec<u8> = (0..1200)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state.to_le_bytes()[3]
                })
                .collect();
            if round % 2 == 0 {
                datagram[..7].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8, 1]);
            }
            let length = if round % 3 == 0 { 1 + round % 40 } else { 1200 };
            vandal.send_to(&datagram[..length], target).unwrap();
            tx.send(&Word::Hello(u32::try_from(round).unwrap())).await.unwrap();
            let heard = rx.recv().await.unwrap();
            assert_eq!(heard, Some(Word::Hello(u32::try_from(round).unwrap())));
        }
    });
}

#[test]
fn a_silent_peer_is_closed_with_a_line() {
    run(async {
        let (server, client, _endpoints) = pair(&TransportSettings::default()).await;
        let wait = Duration::from_millis(100);
        let error = accept_control::<Word, Word>(&server, wait).await.unwrap_err();
        let who = format!("worker at {}", peer_address(&server));
        let line = format!("{who} connected and sent no control stream for 0.1 s");
        assert_eq!(error.to_string(), line);
        let met = describe_close_from("server", &client.closed().await).to_string();
        assert_eq!(met, format!("server closed the connection: silent or stuck peer ({line})"));
    });
}

#[test]
fn a_peer_that_stops_inside_its_hello_is_closed_with_a_line() {
    run(async {
        let (server, client, _endpoints) = pair(&TransportSettings::default()).await;
        let (mut raw, _recv) = client.open_bi().await.unwrap();
        raw.write_all(&[9, 0]).await.unwrap();
        let wait = Duration::from_millis(100);
        let error = accept_hello::<Word, Word>(&server, wait).await.unwrap_err();
        assert!(error.to_string().ends_with("connected and sent no hello for 0.1 s"), "{error}");
        assert!(matches!(
            describe_close(&client.closed().await),
            QuicError::Closed { code: CloseCode::StuckPeer, .. }
        ));
    });
}

/// Sends raw bytes as a control stream and ends it; the line of the end that reads them.
fn damaged(bytes: &[u8], line: &str) {
    run(async {
        let (server, client, _endpoints) = pair(&TransportSettings::default()).await;
        let (mut raw, _recv) = client.open_bi().await.unwrap();
        raw.write_all(bytes).await.unwrap();
        raw.finish().unwrap();
        let error = accept_hello::<Word, Word>(&server, PATIENCE).await.unwrap_err();
        let who = format!("worker at {}", peer_address(&server));
        assert_eq!(error.to_string(), format!("{who}{line}"));
        assert_eq!(error.blame(), Blame::Peer);
        assert!(matches!(
            describe_close(&client.closed().await),
            QuicError::Closed { code: CloseCode::ProtocolViolation, .. }
        ));
    });
}

#[test]
fn damaged_control_streams_are_refused() {
    let too_long = u32::try_from(CONTROL_BYTES_MAX).unwrap() + 1;
    damaged(
        &too_long.to_le_bytes(),
        " announced a control message of 8388609 bytes: at most 8388608 are allowed",
    );
    damaged(
        &[0xff; 64],
        " announced a control message of 4294967295 bytes: at most 8388608 are allowed",
    );
    damaged(&[5, 0, 0], " ended its control stream inside a message");
    damaged(&[5, 0, 0, 0, 1], " ended its control stream inside a message");
    damaged(&[], " ended its control stream inside a message");
    damaged(&[3, 0, 0, 0, 0, 7, 9], ": the peer's control message has 1 bytes too many");
}

#[test]
fn a_cancelled_recv_keeps_what_has_arrived() {
    run(async {
        let (server, client, _endpoints) = pair(&TransportSettings::default()).await;
        let (mut raw, _recv) = client.open_bi().await.unwrap();
        let words = [Word::Hello(1), Word::Long(vec![5; 1000]), Word::Hello(2)];
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|word| {
                let body = crate::wire::message::encode(word).unwrap();
                let length = u32::try_from(body.len()).unwrap().to_le_bytes();
                [length.to_vec(), body].concat()
            })
            .collect();
        raw.write_all(&bytes[..1]).await.unwrap();
        let (_tx, mut rx) = accept_control::<Word, Word>(&server, PATIENCE).await.unwrap();
        let (mut heard, mut cancelled, mut sent) = (Vec::new(), 0, 1);
        while heard.len() < words.len() {
            tokio::select! {
                biased;
                word = rx.recv() => heard.push(word.unwrap().unwrap()),
                () = ready(()) => {
                    cancelled += 1;
                    if sent < bytes.len() {
                        raw.write_all(&bytes[sent..=sent]).await.unwrap();
                        sent += 1;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
        assert_eq!(heard, words);
        assert!(cancelled >= words.len(), "the test cancelled {cancelled} times");
    });
}

#[test]
fn a_cancelled_send_never_leaves_half_a_message() {
    run(async {
        let (server, client, _endpoints) = pair(&TransportSettings::default()).await;
        let (mut tx, _rx) = open_control::<Word, Word>(&client).await.unwrap();
        // Larger than the peer's window, so that it cannot leave at once.
        let long = Word::Long(vec![3; 7 << 20]);
        tokio::select! {
            biased;
            _ = tx.send(&long) => panic!("seven MiB fit a window of three"),
            () = ready(()) => {}
        }
        let (_tx, mut rx) = accept_control::<Word, Word>(&server, PATIENCE).await.unwrap();
        let (sent, heard) = tokio::join!(tx.send(&Word::Hello(4)), async {
            [rx.recv().await.unwrap().unwrap(), rx.recv().await.unwrap().unwrap()]
        });
        sent.unwrap();
        assert_eq!(heard, [long, Word::Hello(4)]);
    });
}

#[test]
fn an_unorderly_end_is_an_error_with_the_peers_words() {
    run(async {
        let (server, client, _endpoints) = pair(&TransportSettings::default()).await;
        let (mut tx, mut rx) = open_control::<Word, Word>(&client).await.unwrap();
        tx.send(&Word::Hello(1)).await.unwrap();
        let _streams = accept_control::<Word, Word>(&server, PATIENCE).await.unwrap();
        close(&server, CloseCode::Fenced, "seat 3 has a newer\nincarnation");
        let error = rx.recv().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "server at {} closed the connection: replaced by a newer life (seat 3 has a newer \
                 incarnation)",
                peer_address(&client)
            )
        );
        assert_eq!(error.blame(), Blame::Network);
        client.close(VarInt::from_u32(99), b"");
        assert!(matches!(describe_close(&server.closed().await), QuicError::ClosedHere { .. }));
    });
}

/// Moves 8 MiB each way; the runner's patience is the deadline.
async fn carry(theirs: &TransportSettings, ours: &TransportSettings) -> Connection {
    let (server, client, _endpoints) = pair_of(theirs, ours).await;
    let payload = bytes::Bytes::from(vec![7; 8 << 20]);
    let echo = async {
        let (mut send, mut recv) = server.accept_bi().await.unwrap();
        while let Some(chunk) = recv.read_chunk(usize::MAX, true).await.unwrap() {
            send.write_chunk(chunk.bytes).await.unwrap();
        }
        send.finish().unwrap();
        drop(send.stopped().await);
    };
    let call = async {
        let (mut send, mut recv) = client.open_bi().await.unwrap();
        let say = async {
            send.write_chunk(payload.clone()).await.unwrap();
            send.finish().unwrap();
        };
        let (back, ()) = tokio::join!(recv.read_to_end(9 << 20), say);
        assert!(back.unwrap() == payload);
    };
    tokio::join!(echo, call);
    client
}

#[test]
fn large_packets_move_and_are_not_lost_in_batches_the_kernel_refuses() {
    // Ten segments of 8972 bytes are more than one UDP payload: unclamped, nothing ever arrives.
    for mtu in [8972, 9000, 6500] {
        let settings = TransportSettings::with_mtu(mtu);
        let client = run(carry(&settings, &settings));
        assert_eq!(client.stats().path.current_mtu, mtu);
    }
}

#[test]
fn the_path_is_probed_up_to_the_default() {
    let settings = TransportSettings::default();
    let client = run(carry(&settings, &settings));
    let mtu = client.stats().path.current_mtu;
    assert!((1400..=1452).contains(&mtu), "{mtu}");
}

#[test]
fn ends_with_different_packet_sizes_still_meet() {
    let (small, large) = (TransportSettings::default(), TransportSettings::loopback());
    run(carry(&small, &large));
    run(carry(&large, &small));
}

#[test]
fn our_own_offer_is_the_version_and_the_fallback() {
    assert_eq!(PROTOCOLS, [VERSION, FALLBACK]);
}
