//! One client process of a whole-system test:
//!
//! `slackline-test-client COORDINATOR CERTIFICATES SEAT DRIVER SCRIPT [SEAT DRIVER SCRIPT …]`
//!
//! Plays every script (a JSON file of `tests::script::Op`), all at once, each in a seat of its own;
//! prints one line of JSON (`tests::script::Report`) for each, in the order given. When one fails, it
//! says why in one line and ends with 70.
#![allow(clippy::print_stdout, clippy::print_stderr)] // its output is its purpose

use anyhow::{Context, Result, bail};
use slackline_common::blame::EXIT_OURS;
use slackline_common::quic::Credentials;
use slackline_common::role::Role;
use slackline_worker::client::{ClientConfig, ClientIdentity};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tests::script::{Driver, Op, Report};
use tests::{frames, player};

/// Shorter than the patience of the tests, so that it is the client who says what it waited for.
const WAIT: Duration = Duration::from_secs(45);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slackline-test-client: {error:#}");
            ExitCode::from(EXIT_OURS)
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let [coordinator, certificates, scripts @ ..] = arguments else {
        bail!("COORDINATOR CERTIFICATES SEAT DRIVER SCRIPT … are needed, got {arguments:?}");
    };
    let credentials = Credentials::load_from(Path::new(certificates), Role::Worker)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut playing = Vec::new();
        for script in scripts.chunks(3) {
            let [seat, driver, path] = script else {
                bail!("a script needs SEAT DRIVER SCRIPT, got {script:?}");
            };
            let seat = seat.parse().with_context(|| format!("seat {seat:?}"))?;
            let driver = Driver::find(driver).with_context(|| format!("driver {driver:?}"))?;
            let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
            let ops = serde_json::from_str(&text).with_context(|| format!("script {path}"))?;
            let (coordinator, credentials) = (coordinator.clone(), credentials.clone());
            playing.push(tokio::spawn(play(coordinator, credentials, seat, driver, ops)));
        }
        for one in playing {
            println!("{}", serde_json::to_string(&one.await??)?);
        }
        Ok(())
    })
}

async fn play(
    coordinator: String,
    credentials: Credentials,
    seat: u16,
    driver: Driver,
    script: Vec<Op>,
) -> Result<Report> {
    match driver {
        Driver::Client => {
            let config = ClientConfig {
                name: Some(format!("client-{seat}")),
                seat: Some(seat),
                mtu: 6500,
                wait: WAIT,
                ..ClientConfig::new(coordinator, ClientIdentity::Loaded(credentials))
            };
            player::play(config, &script).await
        }
        Driver::Frames => frames::play(&coordinator, &credentials, seat, &script).await,
    }
}
