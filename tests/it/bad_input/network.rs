//! Strangers at the ports of a cluster that trains: garbage, silence, floods, other versions, old
//! terms. Each is told why where that is possible, and training goes on.

use quinn::rustls;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slackline_common::config::load_job;
use slackline_common::ids::{Fingerprint, Incarnation, SeatId, Term};
use slackline_common::quic::{
    Connection, ControlReceiver, ControlSender, Endpoint, TransportSettings, client_endpoint,
    connect, describe_close, open_control,
};
use slackline_common::random::hash;
use slackline_common::role::Role;
use slackline_common::wire::control::{DataHello, DataWelcome, FromWorker, Hello, ToWorker};
use std::net::UdpSocket;
use std::sync::Arc;
use tests::clock::wait_for;
use tests::cluster::{Cluster, MemberId, PATIENCE, job_file};

const SETS: [&str; 3] = ["workers=2", "servers=1", "epochs=100000"];

/// A cluster that trains and would do so for ever.
struct Target {
    cluster: Cluster,
    server: String,
    members: Vec<MemberId>,
}

impl Target {
    fn new() -> Self {
        let mut cluster = Cluster::new("");
        let members =
            vec![cluster.server(""), cluster.worker("seat = 0"), cluster.worker("seat = 1")];
        let line = cluster.wait_for_line(cluster.coordinator_id(), "reached at ");
        let server =
            line.split("reached at ").nth(1).unwrap().split(',').next().unwrap().to_owned();
        cluster.submit(&job_file("digits.toml"), &SETS);
        let target = Self { cluster, server, members };
        target.trains();
        target
    }

    fn samples(&self) -> u64 {
        let output = self.cluster.slackline("status", &["--json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let members = status["members"].as_array().unwrap();
        members.iter().map(|member| member["samples"].as_u64().unwrap()).sum()
    }

    /// Waits until both workers have moved on.
    fn trains(&self) {
        let before = self.samples();
        let moved = || (self.samples() > before + 1000).then_some(());
        wait_for("training to go on", PATIENCE, moved, || self.cluster.logs());
    }

    /// Everybody ends well when told to, and nobody was lost on the way.
    fn ends_well(mut self) {
        self.trains();
        self.cluster.signal(self.cluster.coordinator_id(), "TERM");
        for id in [self.cluster.coordinator_id()].into_iter().chain(self.members) {
            assert!(self.cluster.wait_for_end(id).success(), "{}", self.cluster.logs());
        }
        let summary = self.cluster.summary("digits");
        assert_eq!(
            (&summary["ok"], &summary["seats_lost"]),
            (&true.into(), &serde_json::json!([]))
        );
        assert!(!self.cluster.logs().contains("panicked"), "{}", self.cluster.logs());
    }

    fn dialler(&self, role: Role) -> Endpoint {
        let credentials = self.cluster.credentials(role);
        client_endpoint(&credentials, &TransportSettings::loopback()).unwrap()
    }

    /// Both listeners, with the role that each must show.
    fn doors(&self) -> [(String, Role); 2] {
        [(self.cluster.coordinator.clone(), Role::Coordinator), (self.server.clone(), Role::Server)]
    }
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let patient = async { tokio::time::timeout(PATIENCE, test).await.expect("it ends in time") };
    runtime.block_on(patient)
}

/// Why the other end closed, in its own words.
async fn closed(connection: &Connection) -> String {
    describe_close(&connection.closed().await).to_string()
}

#[test]
fn bytes_that_are_no_quic_are_ignored() {
    let target = Target::new();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (address, _) in target.doors() {
        for packet in 0..500 {
            let bytes: Vec<u8> = (0..1 + packet * 2)
                .map(|at| {
                    hash(1, packet, at).to_le_bytes()[0] | if packet % 2 == 0 { 0xc0 } else { 0 }
                })
                .collect();
            socket.send_to(&bytes, &address).unwrap();
        }
    }
    target.ends_well();
}

#[test]
fn garbage_on_a_stream_closes_that_connection_alone() {
    let target = Target::new();
    block_on(async {
        let dialler = target.dialler(Role::Worker);
        for (address, role) in target.doors() {
            // A length of 4 GiB, a message that is none, and an end in the middle.
            for bytes in [&[0xff; 8][..], &[3, 0, 0, 0, 0xee, 0xee, 0xee], &[100, 0, 0, 0, 1]] {
                let connection = connect(&dialler, &address, role, PATIENCE).await.unwrap();
                let (mut send, _recv) = connection.open_bi().await.unwrap();
                send.write_all(bytes).await.unwrap();
                send.finish().unwrap();
                let line = closed(&connection).await;
                assert!(line.contains("protocol violation"), "{role} {bytes:?}: {line}");
            }
        }
    });
    target.ends_well();
}

#[test]
fn fifty_peers_that_say_nothing_stop_nobody_and_are_closed() {
    let target = Target::new();
    block_on(async {
        let dialler = target.dialler(Role::Worker);
        let mut silent = Vec::new();
        for (address, role) in target.doors() {
            for _ in 0..25 {
                silent.push(connect(&dialler, &address, role, PATIENCE).await.unwrap());
            }
        }
        target.trains();
        for connection in &silent {
            let line = closed(connection).await;
            assert!(line.contains("silent or stuck peer") && line.contains("5"), "{line}");
        }
    });
    target.ends_well();
}

/// A client of a release that does not exist yet.
async fn dial_as(target: &Target, protocol: &str, address: &str, role: Role) -> String {
    let certs = target.cluster.certificates();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certs.join("ca.pem")).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(certs.join("worker.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certs.join("worker.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![protocol.into()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    let dialling =
        endpoint.connect_with(config, address.parse().unwrap(), role.dns_name()).unwrap();
    match dialling.await {
        Ok(connection) => closed(&connection).await,
        Err(error) => describe_close(&error).to_string(),
    }
}

#[test]
fn another_version_is_refused_on_both_ends() {
    let target = Target::new();
    block_on(async {
        for (address, role) in target.doors() {
            let line = dial_as(&target, "slackline/99", &address, role).await;
            assert!(line.contains("speaks no protocol of slackline that we know"), "{line}");
        }
    });
    let coordinator = target.cluster.coordinator_id();
    target.cluster.wait_for_line(coordinator, "speaks no protocol of slackline that we know");
    target.ends_well();
}

type Answer = (Connection, ControlSender<DataHello>, ControlReceiver<DataWelcome>);

async fn greet(dialler: &Endpoint, address: &str, hello: &DataHello) -> (Answer, DataWelcome) {
    let connection = connect(dialler, address, Role::Server, PATIENCE).await.unwrap();
    let (mut sender, mut receiver) = open_control(&connection).await.unwrap();
    sender.send(hello).await.unwrap();
    let welcome = receiver.recv().await.unwrap().unwrap();
    ((connection, sender, receiver), welcome)
}

#[test]
fn a_worker_of_another_job_layout_term_or_life_is_told_what_differs() {
    let target = Target::new();
    let job = load_job(&job_file("digits.toml"), &SETS.map(str::to_owned)).unwrap();
    let right = DataHello {
        hello: Hello { name: "double".to_owned(), build: "test".to_owned() },
        seat: SeatId(0),
        incarnation: Incarnation(0),
        term: Term(1),
        layout: job.model.layout().unwrap().fingerprint(),
        job: job.hash(),
    };
    let other = Fingerprint::of(b"other");
    let cases = [
        (DataHello { job: other, ..right.clone() }, "the job differs"),
        (DataHello { layout: other, ..right.clone() }, "the layout differs"),
        (DataHello { term: Term(0), ..right.clone() }, "the term differs"),
        (DataHello { term: Term(9), ..right.clone() }, "the term differs"),
        (DataHello { incarnation: Incarnation(7), ..right.clone() }, "incarnation"),
        (DataHello { seat: SeatId(77), ..right.clone() }, "seat 77 is not a seat of this job"),
        (right, "speaks over another connection already"),
    ];
    block_on(async {
        let dialler = target.dialler(Role::Worker);
        for (hello, part) in cases {
            let (_answer, welcome) = greet(&dialler, &target.server, &hello).await;
            let DataWelcome::Refused(sentence) = welcome else { panic!("{part}: taken in") };
            assert!(sentence.contains(part), "{part:?} is not in {sentence:?}");
            target.cluster.wait_for_line(target.members[0], part);
        }
    });
    target.ends_well();
}

#[test]
fn a_role_may_say_only_what_is_its_own() {
    let target = Target::new();
    block_on(async {
        let (address, role) = target.doors()[1].clone();
        // An operator has nothing to say to a server.
        let error = match connect(&target.dialler(Role::Operator), &address, role, PATIENCE).await {
            Ok(connection) => closed(&connection).await,
            Err(error) => error.to_string(),
        };
        assert!(error.contains("role is operator"), "{error}");
        // A worker's message that comes before its hello is not taken.
        let dialler = target.dialler(Role::Worker);
        let coordinator = &target.cluster.coordinator;
        let connection = connect(&dialler, coordinator, Role::Coordinator, PATIENCE).await.unwrap();
        let (mut sender, _receiver): (ControlSender<FromWorker>, ControlReceiver<ToWorker>) =
            open_control(&connection).await.unwrap();
        sender.send(&FromWorker::LeaseRequest).await.unwrap();
        let line = closed(&connection).await;
        assert!(line.contains("the first message must be a hello"), "{line}");
    });
    target.ends_well();
}
