//! A member that is let in and then sends what no worker sends: it is cut, its seat is lost, and the
//! others finish the job.

use slackline_common::ids::SeatId;
use slackline_common::limits::FRAME_BODY_BYTES_MAX;
use slackline_common::quic::{
    Connection, TransportSettings, client_endpoint, connect, describe_close, open_control,
};
use slackline_common::role::Role;
use slackline_common::wire::control::{
    DataHello, DataWelcome, FromWorker, Hello, StartWorker, ToWorker,
};
use slackline_worker::core::bundle::Sender;
use slackline_worker::net::Patience;
use slackline_worker::net::coordinator::{Coordinator, Event};
use slackline_worker::net::progress::Progress;
use std::sync::Arc;
use tests::cluster::{Cluster, PATIENCE, job_file};

/// Samples of the embedded digits' training part.
const DIGITS: u64 = 1437;

/// A request's head with one field changed: right otherwise, as docs/PROTOCOL.md has it.
fn head(change: impl Fn(&mut [u8; 48])) -> [u8; 48] {
    let mut head = [0; 48];
    head[..4].copy_from_slice(&[0x53, 0x4c, 1, 1]);
    head[6] = 1; // seat
    head[32] = 1; // samples
    change(&mut head);
    head
}

async fn next<T>(line: &mut Coordinator, wanted: impl Fn(ToWorker) -> Option<T>) -> T {
    loop {
        match line.next().await {
            Event::Message(message) => {
                if let Some(found) = wanted(message) {
                    return found;
                }
            }
            Event::Lost(error) => panic!("{error}"),
        }
    }
}

/// Sends bytes on a stream of its own; says how the server closed the connection.
async fn cut_for(connection: &Connection, bytes: &[u8]) -> String {
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    // It may be cut before the end is said.
    let _ = send.finish();
    describe_close(&connection.closed().await).to_string()
}

#[test]
fn a_member_that_breaks_the_protocol_is_cut_and_the_others_finish_its_work() {
    let mut cluster = Cluster::new("lease_seconds = 1.0");
    let server = cluster.server("");
    let worker = cluster.worker("seat = 0");
    cluster.submit(&job_file("digits.toml"), &["workers=2", "servers=1", "epochs=3"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let acting = async {
        let credentials = cluster.credentials(Role::Worker);
        let endpoint = client_endpoint(&credentials, &TransportSettings::loopback()).unwrap();
        let hello = Hello { name: "mallory".to_owned(), build: "test".to_owned() };
        let mut line = Coordinator::connect(
            &endpoint,
            &cluster.coordinator,
            hello.clone(),
            Some(SeatId(1)),
            Arc::new(Progress::default()),
            Patience::default(),
        )
        .await
        .unwrap();
        let (job, sender) = next(&mut line, |message| match message {
            ToWorker::Job { job, seat, incarnation } => Some((job, Sender { seat, incarnation })),
            _ => None,
        })
        .await;
        line.outbox().send(FromWorker::DataReady { samples: DIGITS }).await.unwrap();
        let start: StartWorker = next(&mut line, |message| match message {
            ToWorker::Start(start) => Some(start),
            _ => None,
        })
        .await;
        let data = DataHello {
            hello,
            seat: sender.seat,
            incarnation: sender.incarnation,
            term: start.term,
            layout: start.layout.fingerprint(),
            job: job.hash(),
        };
        let too_long = u32::try_from(FRAME_BODY_BYTES_MAX).unwrap() + 1;
        let frames = [
            b"GET / HTTP/1.1\r\nHost: slackline\r\nAccept: everything\r\n\r\n".to_vec(),
            head(|head| head[44..48].copy_from_slice(&too_long.to_le_bytes())).to_vec(),
            head(|head| head[44..48].copy_from_slice(&u32::MAX.to_le_bytes())).to_vec(),
            head(|head| head[12..16].copy_from_slice(&u32::MAX.to_le_bytes())).to_vec(),
            head(|head| head[40..44].copy_from_slice(&u32::MAX.to_le_bytes())).to_vec(),
            head(|head| head[2] = 99).to_vec(),
            head(|_| {})[..20].to_vec(),
        ];
        for frame in frames {
            let connection =
                connect(&endpoint, &start.servers[0], Role::Server, PATIENCE).await.unwrap();
            let (mut tx, mut rx) = open_control(&connection).await.unwrap();
            tx.send(&data).await.unwrap();
            assert_eq!(rx.recv().await.unwrap(), Some(DataWelcome::Accepted));
            let why = cut_for(&connection, &frame).await;
            assert!(why.contains("protocol violation"), "{frame:02x?}: {why}");
        }
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, acting).await.expect("in time") });
    drop(runtime); // and with it the seat
    for id in [cluster.coordinator_id(), server, worker] {
        assert!(cluster.wait_for_end(id).success(), "{}", cluster.logs());
    }
    let summary = cluster.summary("digits");
    assert_eq!((&summary["ok"], &summary["samples"]), (&true.into(), &(3 * DIGITS).into()));
    assert_eq!(summary["seats_lost"], serde_json::json!([1]));
    assert!(!cluster.logs().contains("panicked"), "{}", cluster.logs());
}
