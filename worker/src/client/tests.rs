//! The raw client through a whole life, and everything its caller can get wrong.

use super::*;
use crate::testing::{FakeCoordinator, FakeServer, Faults, World, job, run};
use slackline_common::role::Role;

const RAW: &str = include_str!("../../../configs/jobs/raw.toml");
const SGD: [&str; 4] =
    ["mode=\"bsp\"", "workers=1", "optimizer.kind=\"sgd\"", "optimizer.learning_rate=0.1"];

fn layout(tensors: &[Tensor<'_>]) -> Layout {
    layout_of(tensors).unwrap()
}

struct Cluster {
    _servers: Vec<FakeServer>,
    coordinator: FakeCoordinator,
    client: Client,
}

async fn cluster(tensors: &[Tensor<'_>], sets: &[&str]) -> Cluster {
    let (world, job) = (World::new(), job(RAW, sets));
    let layout = layout(tensors);
    let servers: Vec<_> = (0..2)
        .map(|id| FakeServer::start(&world, &job, &layout, (id, 2), Faults::default()))
        .collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let coordinator = FakeCoordinator::start(&world, &job, &layout, &addresses);
    let identity = ClientIdentity::Loaded(world.credentials(Role::Worker));
    let config = ClientConfig {
        wait: Duration::from_secs(20),
        ..ClientConfig::new(coordinator.address.clone(), identity)
    };
    let client = Client::connect(config).await.unwrap();
    Cluster { _servers: servers, coordinator, client }
}

/// Two tensors whose steps of gradient descent are known from another parameter server's tests.
#[test]
fn two_steps_of_gradient_descent_give_the_published_numbers() {
    run(async {
        let tensors = [
            Tensor::new("a", &[3], &[10.0, 20.0, 30.0]),
            Tensor::new("b", &[3], &[20.0, 40.0, 60.0]),
        ];
        let Cluster { coordinator, mut client, .. } = cluster(&tensors, &SGD).await;
        let outcome = client.init(&tensors).await.unwrap();
        assert_eq!(outcome.winner, SeatId(0));
        let near = |values: &[Vec<f32>], expected: [[f32; 3]; 2]| {
            for (value, expected) in values.iter().flatten().zip(expected.as_flattened()) {
                assert!((value - expected).abs() < 1e-4, "{values:?}");
            }
        };
        client.push(&[("a", &[1.0, 2.0, 3.0]), ("b", &[2.0, 4.0, 6.0])], 1).await.unwrap();
        let values = client.pull(&["a", "b"]).await.unwrap();
        near(&values, [[9.9, 19.8, 29.7], [19.8, 39.6, 59.4]]);
        let second: [(&str, &[f32]); 2] = [("b", &[9.0, 9.0, 6.0]), ("a", &[0.0, 0.0, 7.0])];
        let values = client.push_pull(&second, 1).await.unwrap();
        near(&[values[1].clone(), values[0].clone()], [[9.9, 19.8, 29.0], [18.9, 38.7, 58.8]]);
        assert_eq!(client.clock(), Step(2));
        client.barrier().await.unwrap();
        client.barrier().await.unwrap();
        assert_eq!(client.stats().samples, 2);
        client.leave().await.unwrap();
        let said = coordinator.said.lock().unwrap();
        let last = said.last().unwrap();
        use slackline_common::wire::control::FromWorker::Finished;
        assert!(matches!(last, Finished(report) if report.clock == Step(2)), "{last:?}");
    });
}

#[test]
fn part_of_the_tensors_moves_the_clock_of_every_shard() {
    run(async {
        let values = vec![1.0; 1000];
        let tensors = [Tensor::new("a", &[1000], &values), Tensor::new("b", &[1], &[5.0])];
        let Cluster { mut client, .. } = cluster(&tensors, &SGD).await;
        client.init(&tensors).await.unwrap();
        for _ in 0..3 {
            client.push_async(&[("b", &[10.0])], 1).await.unwrap();
        }
        client.flush().await.unwrap();
        let mut a = vec![0.0; 1000];
        let mut b = [0.0];
        client.pull_into(&mut [("b", &mut b), ("a", &mut a)]).await.unwrap();
        assert_eq!((b, a), ([2.0], values));
    });
}

#[test]
fn a_callers_mistake_is_typed_and_costs_nothing() {
    run(async {
        let tensors = [
            Tensor::new("weight", &[2, 3], &[0.0; 6]),
            Tensor { dtype: Dtype::F16, ..Tensor::new("half", &[2], &[0.0; 2]) },
        ];
        let Cluster { mut client, .. } = cluster(&tensors, &SGD).await;
        let check = |error: ClientError, text: &str| {
            assert!(error.to_string().contains(text), "{error} does not say {text:?}");
            assert_eq!(error.blame(), slackline_common::blame::Blame::Config);
        };
        check(client.push(&[("weight", &[0.0; 6])], 1).await.unwrap_err(), "call init first");
        let bad = [Tensor::new("weight", &[2, 3], &[0.0; 5])];
        check(client.init(&bad).await.unwrap_err(), "6 elements, the caller gives 5");
        let other = [Tensor::new("weight", &[3, 2], &[0.0; 6])];
        check(client.init(&other).await.unwrap_err(), "differ");
        client.init(&tensors).await.unwrap();
        check(client.init(&tensors).await.unwrap_err(), "init is called once");

        check(client.pull(&["wieght"]).await.unwrap_err(), "did you mean \"weight\"");
        check(client.push(&[("weight", &[0.0; 7])], 1).await.unwrap_err(), "gives 7 values");
        let twice: [(&str, &[f32]); 2] = [("weight", &[0.0; 6]), ("weight", &[0.0; 6])];
        check(client.push(&twice, 1).await.unwrap_err(), "named twice");
        check(client.pull(&["weight", "weight"]).await.unwrap_err(), "named twice");
        check(client.push(&[], u32::MAX).await.unwrap_err(), "samples");
        check(client.check("weight", &[3, 2], Dtype::F32).unwrap_err(), "has shape [2, 3]");
        check(client.check("half", &[2], Dtype::F32).unwrap_err(), "declared as f16");
        client.check("half", &[2], Dtype::F16).unwrap();

        assert_eq!(client.clock(), Step(0));
        client.push(&[("weight", &[1.0; 6])], 1).await.unwrap();
        let values = client.pull(&["half", "weight"]).await.unwrap();
        assert_eq!(values, [vec![0.0; 2], vec![-0.1; 6]]);
    });
}

/// The coordinator of these tests stops the job instead of letting anybody pass barrier
/// `STOP_AT_BARRIER`.
#[test]
fn a_job_that_is_stopped_ends_the_wait_and_every_later_step_but_not_the_leaving() {
    run(async {
        let tensors = [Tensor::new("a", &[3], &[0.0; 3])];
        let Cluster { coordinator, mut client, .. } = cluster(&tensors, &SGD).await;
        client.init(&tensors).await.unwrap();
        client.push(&[("a", &[1.0; 3])], 1).await.unwrap();
        for _ in 1..crate::testing::STOP_AT_BARRIER {
            client.barrier().await.unwrap();
        }
        let check = |error: ClientError| {
            assert!(matches!(error, ClientError::Stopping), "{error}");
            assert!(error.to_string().contains("the job was stopped: leave"), "{error}");
        };
        check(client.barrier().await.unwrap_err());
        check(client.push(&[("a", &[1.0; 3])], 1).await.unwrap_err());
        check(client.pull(&["a"]).await.unwrap_err());
        client.flush().await.unwrap();
        assert_eq!(client.clock(), Step(1));
        client.leave().await.unwrap();
        let said = coordinator.said.lock().unwrap();
        use slackline_common::wire::control::FromWorker::Finished;
        assert!(matches!(said.last(), Some(Finished(report)) if report.clock == Step(1)));
    });
}

#[test]
fn a_built_in_model_is_not_for_raw_clients() {
    run(async {
        let world = World::new();
        let job = job(include_str!("../../../configs/jobs/digits.toml"), &[]);
        let layout = job.model.layout().unwrap();
        let coordinator = FakeCoordinator::start(&world, &job, &layout, &[]);
        let identity = ClientIdentity::Loaded(world.credentials(Role::Worker));
        let config = ClientConfig::new(coordinator.address, identity);
        let error = Client::connect(config).await.unwrap_err();
        assert!(matches!(error, ClientError::NotExternal { .. }), "{error}");
    });
}
