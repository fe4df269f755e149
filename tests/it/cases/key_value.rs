//! ps-lite's key-value sum (E01).

use super::*;
use std::time::Duration;
use tests::relay::{Path, Relay};

/// Keys of one worker.
const KEYS: usize = 10_000;
/// Keys in one tensor.
const KEYS_PER_TENSOR: usize = 100;
const TENSORS: usize = KEYS / KEYS_PER_TENSOR;
/// Each time with tensors of its own.
const ROUNDS: usize = 4;
/// Pushes, and then as many pushes with a pull.
const REPEATS: u32 = 50;
const OUTSTANDING: u32 = 10;

fn name(round: usize, tensor: usize, rank: u16) -> String {
    format!("round{round}.keys{tensor:02}.rank{rank}")
}

/// Whole numbers from 0 to 999, the same wherever they are asked for (splitmix64).
fn value(round: usize, rank: u16, key: usize) -> f32 {
    let mut z = ((round as u64) << 40) + (u64::from(rank) << 32) + key as u64;
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    f32::from(u16::try_from((z ^ (z >> 31)) % 1000).unwrap())
}

fn values(round: usize, tensor: usize, rank: u16, factor: f32) -> Vec<f32> {
    let keys = tensor * KEYS_PER_TENSOR..(tensor + 1) * KEYS_PER_TENSOR;
    keys.map(|key| factor * value(round, rank, key)).collect()
}

/// Every tensor of every rank and round, the ranks' keys next to each other all over the key space.
/// Neighbours change places, so that placement in turns does not give each rank a server of its own.
fn tensors(workers: u16) -> impl Iterator<Item = (usize, usize, u16)> {
    let ranks =
        move |tensor| (0..workers).map(move |at| (usize::from(at) + tensor) % usize::from(workers));
    let of = move |round, tensor| {
        ranks(tensor).map(move |rank| (round, tensor, u16::try_from(rank).unwrap()))
    };
    (0..ROUNDS).flat_map(move |round| (0..TENSORS).flat_map(move |tensor| of(round, tensor)))
}

fn script(workers: u16, rank: u16) -> Vec<Op> {
    let zero = |(round, tensor, rank)| {
        let shape = [KEYS_PER_TENSOR as u64];
        Declared::new(name(round, tensor, rank), &shape, Values::Fill(0.0))
    };
    let mut script = vec![Op::Init(tensors(workers).map(zero).collect())];
    for round in 0..ROUNDS {
        let names: Vec<_> = (0..TENSORS).map(|tensor| name(round, tensor, rank)).collect();
        let one = |tensor| Values::List(values(round, tensor, rank, 1.0));
        let own: Named = names.iter().cloned().zip((0..TENSORS).map(one)).collect();
        let ten = Op::Repeat(OUTSTANDING, vec![Op::PushAsync(own.clone(), 1)]);
        script.push(Op::Repeat(REPEATS / OUTSTANDING, vec![ten, Op::Flush]));
        script.push(Op::Pull(names));
        script.push(Op::Repeat(REPEATS - 1, vec![Op::PushPull(own.clone(), 1)]));
        script.push(Op::PushPull(own, 1));
    }
    script
}

/// Plays the case with one process for each entry of `processes`, which has so many clients.
fn check(servers: u16, processes: &[u16]) {
    play(Case::new(&adding(servers, processes), servers), processes);
}

fn adding(servers: u16, processes: &[u16]) -> String {
    job("mode = \"asp\"\nreduce = \"sum\"", processes.iter().sum(), servers, ADD)
}

fn play(mut case: Case, processes: &[u16]) {
    let workers: u16 = processes.iter().sum();
    let mut seats = 0..workers;
    for clients in processes {
        let seats = seats.by_ref().take(usize::from(*clients));
        let scripts: Vec<_> = seats.map(|seat| (seat, script(workers, seat))).collect();
        case.clients.push(case.cluster.client(Driver::Client, &scripts));
    }
    let ending = case.finish();
    for rank in 0..workers {
        let pulls = ending.pulls(rank);
        assert_eq!(pulls.len(), 3 * ROUNDS);
        for (round, pulls) in pulls.chunks(3).enumerate() {
            for (pull, times) in pulls.iter().zip([50.0, 99.0, 100.0]) {
                for (tensor, got) in pull.iter().enumerate() {
                    let expected = exactly(&values(round, tensor, rank, times));
                    assert_eq!(*got, expected, "{times} times {}", name(round, tensor, rank));
                }
            }
        }
    }
    let pushes = ROUNDS as u64 * 2 * u64::from(REPEATS);
    assert_eq!(ending.number("pushes_applied"), pushes * u64::from(workers));
    assert_eq!(
        (ending.number("steps"), ending.number("samples")),
        (pushes, pushes * u64::from(workers))
    );
    ending.check_model(
        tensors(workers).flat_map(|(round, tensor, rank)| values(round, tensor, rank, 100.0)),
    );
}

/// Two servers, two workers. Each owns 10,000 keys, spread over the key space between those of the
/// other, with fixed random whole numbers. Each pushes them 50 times, at most 10 pushes without an
/// answer, and reads: 50 times the numbers. Then 50 times a push with a pull: 100 times. ps-lite
/// allows a mean error of 1e-5 per repeat; sums of these are exact in `f32`, so nothing is allowed. All
/// of it four times, with fresh tensors.
#[test]
fn pushes_add_up_exactly_with_two_servers_and_two_workers() {
    check(2, &[1, 1]);
}

/// The same with nobody to share with.
#[test]
fn pushes_add_up_exactly_with_one_server_and_one_worker() {
    check(1, &[1]);
}

/// The same with four of each.
#[test]
fn pushes_add_up_exactly_with_four_servers_and_four_workers() {
    check(4, &[1, 1, 1, 1]);
}

/// The same with two clients that share a process and know nothing of each other.
#[test]
fn two_clients_in_one_process_add_up_as_two_processes_do() {
    check(2, &[2]);
}

/// The case again over links that drop every tenth datagram, deliver every twentieth twice and every
/// tenth out of order, both ways: the same sums, and as many pushes applied as were made, so none
/// twice.
#[test]
fn pushes_add_up_exactly_over_links_that_lose_double_and_reorder() {
    let path = Path {
        delay: Duration::from_millis(1),
        loss: 0.1,
        duplicate: 0.05,
        reorder: 0.1,
        ..Path::default()
    };
    let relays: Vec<_> = (1..=2).map(|seed| Relay::start(path, path, seed)).collect();
    play(Case::through(&adding(2, &[1, 1]), &relays), &[1, 1]);
    for relay in relays {
        let (up, down) = relay.counts();
        // Enough came for every kind of trouble to have happened.
        for counts in [up, down] {
            assert!(counts.lost.min(counts.duplicated).min(counts.reordered) > 100, "{counts:?}");
        }
    }
}
