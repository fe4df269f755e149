//! A seat against servers of the test's own: what goes wrong on the way, and what is said about it.

use super::seat::Seat;
use super::{NetError, Patience};
use crate::core::bundle::Sender;
use crate::testing::{FakeServer, Faults, World, job, run};
use slackline_common::blame::Blame;
use slackline_common::ids::{Incarnation, SeatId, Step, Term};
use slackline_common::job::Job;
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::limits::FRAMES_IN_FLIGHT_MAX;
use slackline_common::quic::CloseCode;
use slackline_common::wire::control::{Hello, StartWorker};
use slackline_common::wire::frame::Refusal;
use std::time::Duration;

const RAW: &str = include_str!("../../../configs/jobs/raw.toml");

fn layout() -> Layout {
    Layout::new(vec![
        TensorSpec::parameter("large", &[1_500_000], Init::Zeros),
        TensorSpec::parameter("small", &[3], Init::Zeros),
    ])
    .unwrap()
}

/// `w += g`, so that what has arrived can be read off.
fn adding() -> Job {
    job(
        RAW,
        &["mode=\"bsp\"", "workers=1", "optimizer.kind=\"add\"", "optimizer.learning_rate=1.0"],
    )
}

fn impatient() -> Patience {
    let short = Duration::from_millis(300);
    Patience { server: short, connect: short, ..Patience::default() }
}

struct Cluster {
    servers: Vec<FakeServer>,
    seat: Seat,
}

async fn cluster(faults: &[Faults], patience: Patience) -> Cluster {
    let (world, job, layout) = (World::new(), adding(), layout());
    let shards = u16::try_from(faults.len()).unwrap();
    let servers: Vec<_> = (0..shards)
        .zip(faults)
        .map(|(id, faults)| FakeServer::start(&world, &job, &layout, (id, shards), *faults))
        .collect();
    let start = StartWorker {
        layout,
        servers: servers.iter().map(|server| server.address.clone()).collect(),
        shards,
        term: Term(1),
    };
    let sender = Sender { seat: SeatId(0), incarnation: Incarnation(1) };
    let hello = Hello { name: "test".to_owned(), build: "test".to_owned() };
    let seat = Seat::connect(&world.dialler(), &job, start, sender, hello, patience).await;
    Cluster { servers, seat: seat.unwrap() }
}

/// Values that tell every element apart and are exact in sums.
fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 4001) as f32).collect()
}

/// Pushes everything once.
async fn push(seat: &mut Seat, values: &[f32]) -> Result<(), NetError> {
    seat.released().await?;
    let tensors: Vec<_> = seat.tensors().collect();
    let mut bundler = seat.begin(&tensors, 1)?;
    for tensor in tensors.iter().rev() {
        let range = seat.plan().layout().range(*tensor);
        seat.push_tensor(&mut bundler, *tensor, &values[range]).await?;
    }
    seat.end(bundler).await
}

async fn pull(seat: &mut Seat) -> Result<Vec<f32>, NetError> {
    let groups = seat.plan().groups(|_| true);
    let mut out = vec![f32::NAN; seat.plan().layout().elements()];
    let pull = seat.request(&groups);
    seat.receive(&groups, pull, out.as_mut_slice()).await?;
    Ok(out)
}

#[test]
fn what_is_pushed_to_two_servers_is_what_is_pulled() {
    run(async {
        let Cluster { seat, .. } = &mut cluster(&[Faults::default(); 2], impatient()).await;
        let once = values(seat.plan().layout().elements());
        push(seat, &once).await.unwrap();
        push(seat, &once).await.unwrap();
        let twice: Vec<f32> = once.iter().map(|value| 2.0 * value).collect();
        assert_eq!(pull(seat).await.unwrap(), twice);
        seat.flush().await.unwrap();
        let mut report = slackline_common::wire::control::WorkerReport::default();
        seat.servers().fill_report(&mut report);
        let bytes = once.len() as u64 * 4;
        assert_eq!(report.payload_bytes_up, 2 * bytes);
        assert!(report.payload_bytes_down >= bytes && report.bytes_outstanding == 0);
        assert!(report.wire_bytes_up > 2 * bytes && report.wire_bytes_down > bytes);
    });
}

#[test]
fn a_lost_connection_is_dialled_again_and_nothing_is_applied_twice() {
    run(async {
        for cut_at in [1, 2, 4, 7] {
            let faults = [Faults { cut_at: Some(cut_at), ..Faults::default() }];
            let Cluster { servers, seat } = &mut cluster(&faults, Patience::default()).await;
            let once = values(seat.plan().layout().elements());
            push(seat, &once).await.unwrap();
            assert_eq!(pull(seat).await.unwrap(), once, "cut at request {cut_at}");
            seat.leave().await.unwrap();
            let shard = servers[0].shard.lock().unwrap();
            assert_eq!((shard.connections, shard.clock, shard.left), (2, 1, true));
        }
    });
}

#[test]
fn a_server_that_stays_away_is_named_with_what_it_owes() {
    run(async {
        let Cluster { servers, seat } = &mut cluster(&[Faults::default(); 2], impatient()).await;
        servers[1].shard.lock().unwrap().held_at = 0;
        push(seat, &values(seat.plan().layout().elements())).await.unwrap();
        seat.flush().await.unwrap();
        servers[1].endpoint.close(CloseCode::Shutdown.to_wire(), b"");
        let error = pull(seat).await.unwrap_err();
        let line = error.to_string();
        let name = format!("server 1 at {}", servers[1].address);
        assert!(line.starts_with(&name) && line.contains("pulling for step 1"), "{line}");
        assert_eq!(error.blame(), Blame::Network);
    });
}

#[test]
fn waiting_for_slower_seats_is_no_fault_and_can_be_given_up() {
    run(async {
        let Cluster { servers, seat } = &mut cluster(&[Faults::default()], impatient()).await;
        let once = values(seat.plan().layout().elements());
        push(seat, &once).await.unwrap();
        servers[0].shard.lock().unwrap().held_at = 0;
        // More pulls than may be on their way, each given up: permits come back.
        let groups = seat.plan().groups(|_| true);
        for _ in 0..2 * FRAMES_IN_FLIGHT_MAX {
            let waiting = seat.request(&groups);
            tokio::task::yield_now().await;
            drop(waiting);
        }
        let mut waiting = seat.request(&groups);
        let patience = impatient().server * 2;
        let early = tokio::time::timeout(patience, waiting.next()).await;
        assert!(early.is_err(), "the step was not released");
        drop(waiting);
        servers[0].shard.lock().unwrap().held_at = u64::MAX;
        servers[0].moved.notify_waiters();
        assert_eq!(pull(seat).await.unwrap(), once);
    });
}

#[test]
fn a_refused_push_is_told_once_and_keeps_its_kind() {
    run(async {
        let faults = Faults { refuses: Some(Refusal::StaleIncarnation), ..Faults::default() };
        let Cluster { seat, .. } = &mut cluster(&[faults], impatient()).await;
        push(seat, &values(seat.plan().layout().elements())).await.unwrap();
        let error = seat.flush().await.unwrap_err();
        let expected = Refusal::StaleIncarnation;
        assert!(
            matches!(&error, NetError::Refused { refusal, .. } if *refusal == expected),
            "{error}"
        );
        seat.flush().await.unwrap();
        assert_eq!(seat.clock(), Step(1));
    });
}

/// A server looks whether a worker lives with streams that the worker has to take from it.
#[test]
fn a_worker_answers_any_number_of_looks_whether_it_lives() {
    use slackline_common::quic;
    use slackline_common::role::Role;
    use slackline_common::wire::control::{DataHello, DataWelcome};
    const WAIT: Duration = Duration::from_secs(20);
    run(async {
        let world = World::new();
        let listener = world.listener(Role::Server);
        let start = StartWorker {
            layout: layout(),
            servers: vec![listener.local_addr().unwrap().to_string()],
            shards: 1,
            term: Term(1),
        };
        let sender = Sender { seat: SeatId(0), incarnation: Incarnation(1) };
        let hello = Hello { name: "test".to_owned(), build: "test".to_owned() };
        let (job, dialler) = (adding(), world.dialler());
        let worker = Seat::connect(&dialler, &job, start, sender, hello, Patience::default());
        let server = async {
            let incoming = quic::accept(&listener).await.unwrap();
            let connection = quic::handshake(incoming, WAIT).await.unwrap();
            let greeting = quic::accept_hello::<DataWelcome, DataHello>(&connection, WAIT).await;
            let (mut say, _hear, _) = greeting.unwrap();
            say.send(&DataWelcome::Accepted).await.unwrap();
            for look in 0..500 {
                let open = tokio::time::timeout(WAIT, connection.open_uni()).await;
                open.unwrap_or_else(|_| panic!("look {look} found no stream"))
                    .unwrap()
                    .finish()
                    .unwrap();
            }
        };
        let (seat, ()) = tokio::join!(worker, server);
        drop(seat.unwrap());
    });
}

#[test]
fn closing_ends_every_wait() {
    run(async {
        let Cluster { servers, seat } =
            &mut cluster(&[Faults::default()], Patience::default()).await;
        servers[0].shard.lock().unwrap().held_at = 0;
        push(seat, &values(seat.plan().layout().elements())).await.unwrap();
        let groups = seat.plan().groups(|_| true);
        let mut waiting = seat.request(&groups);
        seat.servers().close(CloseCode::Done, "the test is over");
        let (_, reply) = waiting.next().await.unwrap();
        assert!(matches!(reply, Err(NetError::Closed)), "{reply:?}");
        assert!(push(seat, &values(seat.plan().layout().elements())).await.is_err());
    });
}
