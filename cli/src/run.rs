//! `slackline run`: a local cluster of the real programs, from start to summary.

use crate::args::RunArguments;
use crate::cluster::{EndedMember, LocalCluster, Plan};
use crate::display::Display;
use crate::error::CliError;
use crate::operator::{Operator, unexpected};
use slackline_common::blame::Blame;
use slackline_common::config::load_job;
use slackline_common::wire::control::{Ended, FromOperator, ToOperator};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long the processes may take to end by themselves once the job is over.
const ENDING_DEADLINE: Duration = Duration::from_secs(15);

/// Starts, submits, watches, and ends everything it started.
pub(crate) async fn run(arguments: &RunArguments) -> Result<(), CliError> {
    let mut sets = arguments.sets.clone();
    sets.extend(arguments.servers.map(|servers| format!("servers={servers}")));
    sets.extend(arguments.workers.map(|workers| format!("workers={workers}")));
    let job = load_job(&arguments.job, &sets)?;
    let plan = Plan {
        servers: job.servers,
        workers: job.workers,
        run_dir: arguments.run_dir.clone(),
        data_dir: arguments.data_dir.clone(),
        slow: arguments
            .slow
            .iter()
            .map(|text| parse_slow(text, job.workers))
            .collect::<Result<_, _>>()?,
    };
    let mut signals = Signals::new()?;
    let mut cluster = LocalCluster::start(&plan).await?;
    let mut display = Display::new(arguments.json);
    display.note(&format!(
        "coordinator {} · certificates {}",
        cluster.coordinator,
        cluster.certificates().display()
    ));
    let mut operator = Operator::connect(&cluster.coordinator, &cluster.credentials).await?;
    operator.submit(&job).await?;
    operator.send(&FromOperator::Watch).await?;
    let watched = watch(&mut operator, &mut cluster, &mut display, &mut signals).await;
    match watched {
        Ok((ended, run_dir)) => {
            cluster.wait_for_all(ENDING_DEADLINE).await;
            cluster.keep_logs(&run_dir);
            CliError::of_end(ended)
        }
        Err(error) => {
            cluster.end_all().await;
            display.note(&cluster.last_words());
            Err(error)
        }
    }
}

/// Shows progress until the job has ended. A member that fails before training cannot be replaced
/// here, so that ends the run; later the cluster itself knows what to do. The first signal stops the
/// job and keeps the model, the second ends everything at once.
async fn watch(
    operator: &mut Operator,
    cluster: &mut LocalCluster,
    display: &mut Display,
    signals: &mut Signals,
) -> Result<(Ended, String), CliError> {
    let mut stopping = false;
    let mut failed = None;
    loop {
        tokio::select! {
            message = operator.next() => match message? {
                ToOperator::Status(status) => {
                    if let Some(ended) = failed.take_if(|_| status.phase == "gathering") {
                        return Err(EndedMember::into(ended));
                    }
                    display.show(&status);
                }
                ToOperator::Ended { ended, summary, run_dir } => {
                    display.finish(&ended, summary.as_deref(), &run_dir);
                    return Ok((ended, run_dir));
                }
                ToOperator::Refused(sentence) => return Err(CliError::Refused(sentence)),
                _ => return Err(unexpected("watch")),
            },
            ended = cluster.next_ended() => {
                if cluster.coordinator_has_ended() {
                    return Err(ended.into());
                }
                display.note(&ended.sentence);
                failed.get_or_insert(ended);
            }
            () = signals.next() => {
                if stopping {
                    let reason = "stopped by a second signal".to_owned();
                    return Err(CliError::JobFailed { reason, blame: Blame::Network });
                }
                stopping = true;
                display.note("stopping: every worker finishes its step, the model is kept");
                let mut other =
                    Operator::connect(&cluster.coordinator, &cluster.credentials).await?;
                match other.stop().await {
                    // It has just ended by itself; its last message is on its way.
                    Ok(()) | Err(CliError::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Ctrl-C, SIGTERM, and a terminal that is closed.
struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(CliError::Runtime);
        Ok(Self {
            hangup: on(SignalKind::hangup())?,
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.hangup.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// `SEAT:FACTOR`, of a job with so many workers.
fn parse_slow(text: &str, workers: u16) -> Result<(u16, f64), CliError> {
    let parsed = text.split_once(':').and_then(|(seat, factor)| {
        let seat = seat.parse().ok().filter(|seat| *seat < workers)?;
        Some((seat, factor.parse().ok().filter(|factor: &f64| (1.0..1e6).contains(factor))?))
    });
    parsed.ok_or_else(|| CliError::Flag {
        flag: "--slow",
        rule: "a seat of the job (from 0), a colon and a factor of at least 1, as in 2:10",
        got: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_seat_is_a_number_and_a_factor() {
        assert_eq!(parse_slow("2:10", 4).unwrap(), (2, 10.0));
        for text in ["2", "2:0.5", "x:3", "2:fast", ":", "70000:2", "4:2", "1:inf", "1:NaN"] {
            assert!(parse_slow(text, 4).unwrap_err().to_string().contains(text));
        }
    }
}
