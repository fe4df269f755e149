//! Delay and loss for one link of the benchmark laboratory (`bench/wan/lab.py`):
//!
//! `slackline-wan-relay DELAY_US LOSS_UP LOSS_DOWN SEED`, with a TUN interface as its standard input
//! (the host's end) and another as its standard output (the hub's end).
//!
//! Packets read from one are written to the other after the delay, in order, each way; a share of
//! them is lost. Every packet's fate is a function of the seed and of its number. It ends when an
//! interface is gone or somebody ends it.
#![allow(clippy::print_stderr)] // a program's last words

use anyhow::{Context, Result, bail};
use slackline_common::blame::EXIT_OURS;
use slackline_common::random::hash;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Packets under way in one direction; one more is lost. At 1,500 bytes each, 120 ms of 1 Gbit/s.
const PACKETS_MAX: usize = 10_000;
/// Largest packet.
const PACKET_BYTES_MAX: usize = 16_384;
/// Packets due within so little time are sent together: fewer wake-ups of a small machine.
const TOGETHER: Duration = Duration::from_micros(100);

/// A packet and when it leaves.
type Delayed = (Instant, Vec<u8>);

/// What one direction does to packets.
#[derive(Clone, Copy)]
struct Fate {
    delay: Duration,
    loss: f64,
    seed: u64,
    direction: u64,
}

impl Fate {
    /// Whether the packet of this number is lost.
    fn loses(&self, number: u64) -> bool {
        let unit = (hash(self.seed, self.direction, number) >> 11) as f64 / (1_u64 << 53) as f64;
        unit < self.loss
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slackline-wan-relay: {error:#}");
            ExitCode::from(EXIT_OURS)
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let [delay, up, down, seed] = arguments else {
        bail!("DELAY_US LOSS_UP LOSS_DOWN SEED are needed, got {arguments:?}");
    };
    let delay = Duration::from_micros(delay.parse().context("DELAY_US")?);
    let seed = seed.parse().context("SEED")?;
    let host = file(std::io::stdin())?;
    let hub = file(std::io::stdout())?;
    let mut readers = Vec::new();
    for (direction, loss, from, to) in [(0, up, &host, &hub), (1, down, &hub, &host)] {
        let loss = loss.parse().with_context(|| format!("loss {loss:?}"))?;
        let fate = Fate { delay, loss, seed, direction };
        let (sender, receiver) = sync_channel(PACKETS_MAX);
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        thread::spawn(move || let_out(to, &receiver));
        readers.push(thread::spawn(move || take_in(from, fate, &sender)));
    }
    for reader in readers {
        match reader.join() {
            Ok(ended) => ended?,
            Err(_) => bail!("a reader panicked"),
        }
    }
    Ok(())
}

/// The open file behind a standard stream, without its buffer.
fn file(stream: impl AsFd) -> Result<File> {
    Ok(File::from(stream.as_fd().try_clone_to_owned()?))
}

/// Reads packets until there are no more.
fn take_in(mut from: File, fate: Fate, queue: &SyncSender<Delayed>) -> Result<()> {
    let mut packet = vec![0; PACKET_BYTES_MAX];
    for number in 0.. {
        let length = from.read(&mut packet).context("reading from the interface")?;
        if length == 0 {
            break;
        }
        if !fate.loses(number) {
            // A full queue loses it, as a router would.
            drop(queue.try_send((Instant::now() + fate.delay, packet[..length].to_vec())));
        }
    }
    Ok(())
}

/// Writes packets when they are due.
fn let_out(mut to: File, queue: &Receiver<Delayed>) {
    while let Ok((due, packet)) = queue.recv() {
        loop {
            let early = due.saturating_duration_since(Instant::now());
            if early <= TOGETHER {
                break;
            }
            thread::park_timeout(early);
        }
        // An interface that is down loses it.
        drop(to.write(&packet));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_is_lost_is_the_share_asked_for() {
        let count = |loss| {
            let fate = Fate { delay: Duration::ZERO, loss, seed: 7, direction: 1 };
            (0..100_000).filter(|number| fate.loses(*number)).count()
        };
        assert_eq!((count(0.0), count(1.0)), (0, 100_000));
        // Five standard deviations of a binomial of 100,000 at 1 %.
        assert!(count(0.01).abs_diff(1000) < 158, "{}", count(0.01));
    }
}
