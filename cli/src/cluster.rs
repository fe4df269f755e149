//! A local cluster: throw-away certificates, config files, and one real process per member.

use crate::error::CliError;
use slackline_common::blame::{Blame, EXIT_CONFIG, EXIT_OURS};
use slackline_common::quic::{Authority, Credentials};
use slackline_common::role::Role;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// How long the coordinator may take to say where it listens.
const LISTENING_DEADLINE: Duration = Duration::from_secs(20);
/// How often its address file and the processes are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Days the throw-away certificates are valid.
const THROW_AWAY_DAYS: u32 = 30;
/// Largest packet on loopback; bigger packets halve the cost of a byte.
const LOOPBACK_MTU: u16 = 6500;

/// What to start.
pub(crate) struct Plan {
    pub servers: u16,
    pub workers: u16,
    pub run_dir: PathBuf,
    pub data_dir: PathBuf,
    /// Seats and the factor they are slowed by.
    pub slow: Vec<(u16, f64)>,
}

struct Member {
    label: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

/// A process that ended when it should not.
pub(crate) struct EndedMember {
    /// Which, how, and its last words.
    pub sentence: String,
    /// Whose move it is, by its exit code.
    pub blame: Blame,
}

impl From<EndedMember> for CliError {
    fn from(ended: EndedMember) -> Self {
        Self::MemberEnded { sentence: ended.sentence, blame: ended.blame }
    }
}

/// The running processes. Dropping it ends those that still run.
pub(crate) struct LocalCluster {
    /// Where the coordinator listens.
    pub coordinator: String,
    /// The operator's certificates.
    pub credentials: Credentials,
    members: Vec<Member>,
    folder: TempDir,
}

impl LocalCluster {
    /// Starts coordinator, servers and workers, in this order.
    ///
    /// # Errors
    /// When a program is missing or the coordinator does not come up.
    pub(crate) async fn start(plan: &Plan) -> Result<Self, CliError> {
        let folder = TempDir::with_prefix("slackline-").map_err(CliError::Runtime)?;
        let credentials = write_certificates(folder.path())?;
        let run_dir = absolute(&plan.run_dir)?;
        let address_file = folder.path().join("coordinator.address");
        let config = format!(
            "listen = \"127.0.0.1:0\"\nrun_dir = {}\nmtu = {LOOPBACK_MTU}\n{}",
            quoted(&run_dir),
            certificates("coordinator")
        );
        let mut cluster =
            Self { coordinator: String::new(), credentials, members: Vec::new(), folder };
        let address_flag = format!("--address-file={}", address_file.display());
        let flags = [address_flag, "--until-input-ends".to_owned()];
        cluster.spawn("coordinator", "slackline-coordinator", &config, &flags)?;
        cluster.coordinator = cluster.wait_for_address(&address_file).await?;
        for number in 0..plan.servers {
            let config = format!(
                "listen = \"127.0.0.1:0\"\ncoordinator = \"{}\"\nmtu = {LOOPBACK_MTU}\n{}",
                cluster.coordinator,
                certificates("server")
            );
            cluster.spawn(&format!("server-{number}"), "slackline-server", &config, &[])?;
        }
        for seat in 0..plan.workers {
            let slow = plan.slow.iter().find(|(slow, _)| *slow == seat);
            let slowdown =
                slow.map_or_else(String::new, |(_, factor)| format!("slowdown = {factor:?}\n"));
            let config = format!(
                "coordinator = \"{}\"\nseat = {seat}\nname = \"worker-{seat}\"\ndata_dir = {}\n\
                 mtu = {LOOPBACK_MTU}\n{slowdown}{}",
                cluster.coordinator,
                quoted(&absolute(&plan.data_dir)?),
                certificates("worker")
            );
            cluster.spawn(&format!("worker-{seat}"), "slackline-worker", &config, &[])?;
        }
        Ok(cluster)
    }

    /// The folder with the operator's certificates.
    pub(crate) fn certificates(&self) -> PathBuf {
        self.folder.path().join("certs")
    }

    fn spawn(
        &mut self,
        label: &str,
        program: &str,
        config: &str,
        flags: &[String],
    ) -> Result<(), CliError> {
        let path = self.folder.path().join(format!("{label}.toml"));
        write(&path, config)?;
        let log = self.folder.path().join(format!("{label}.log"));
        let file = fs::File::create(&log)
            .map_err(|source| CliError::Write { path: log.clone(), source })?;
        let failed = |source| CliError::Start { program: program.to_owned(), source };
        let child = Command::new(beside_this_program(program).map_err(failed)?)
            .arg("--config")
            .arg(&path)
            .args(flags)
            // It closes when this process is gone, however that happens.
            .stdin(Stdio::piped())
            .stdout(file.try_clone().map_err(failed)?)
            .stderr(file)
            // A group of its own: Ctrl-C is ours to pass on, in the right order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        self.members.push(Member { label: label.to_owned(), child, log, ended: None });
        Ok(())
    }

    async fn wait_for_address(&mut self, file: &Path) -> Result<String, CliError> {
        let start = Instant::now();
        loop {
            if let Ok(address) = fs::read_to_string(file) {
                return Ok(address.trim().to_owned());
            }
            if let Some(ended) = self.look_for_ended() {
                return Err(ended.into());
            }
            if start.elapsed() > LISTENING_DEADLINE {
                let seconds = LISTENING_DEADLINE.as_secs();
                let log = self.members.first().map_or_else(String::new, last_line);
                let sentence =
                    format!("the coordinator has not said where it listens for {seconds} s: {log}");
                return Err(CliError::MemberEnded { sentence, blame: Blame::Us });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a process ends; says which, how, and its last words. Cancellation-safe.
    pub(crate) async fn next_ended(&mut self) -> EndedMember {
        loop {
            if let Some(ended) = self.look_for_ended() {
                return ended;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the coordinator's process is over.
    pub(crate) fn coordinator_has_ended(&self) -> bool {
        self.members.first().is_some_and(|coordinator| coordinator.ended.is_some())
    }

    fn look_for_ended(&mut self) -> Option<EndedMember> {
        for member in &mut self.members {
            if member.ended.is_none()
                && let Ok(Some(status)) = member.child.try_wait()
            {
                member.ended = Some(status);
                if !status.success() {
                    let sentence =
                        format!("{} ended with {status}: {}", member.label, last_line(member));
                    let code = status.code().and_then(|code| u8::try_from(code).ok());
                    let blame = match code {
                        Some(EXIT_CONFIG) => Blame::Config,
                        Some(EXIT_OURS) => Blame::Us,
                        _ => Blame::Network,
                    };
                    return Some(EndedMember { sentence, blame });
                }
            }
        }
        None
    }

    /// Waits for every process to end by itself, then ends those that did not.
    pub(crate) async fn wait_for_all(&mut self, deadline: Duration) {
        let waiting = async {
            for member in &mut self.members {
                let _ = member.child.wait().await;
            }
        };
        if timeout(deadline, waiting).await.is_err() {
            self.end_all().await;
        }
    }

    /// Ends every process that still runs, by its own handle.
    pub(crate) async fn end_all(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill().await; // already over is fine
        }
    }

    /// Copies the members' logs into the run's folder; it does not matter if that fails.
    pub(crate) fn keep_logs(&self, run_dir: &str) {
        let logs = Path::new(run_dir).join("logs");
        if fs::create_dir_all(&logs).is_ok() {
            for member in &self.members {
                let _ = fs::copy(&member.log, logs.join(format!("{}.log", member.label)));
            }
        }
    }

    /// The last line of every log that has one.
    pub(crate) fn last_words(&self) -> String {
        let lines = self.members.iter().map(|member| (&member.label, last_line(member)));
        let lines: Vec<_> = lines
            .filter(|(_, line)| !line.is_empty())
            .map(|(label, line)| format!("{label}: {line}"))
            .collect();
        lines.join("\n")
    }
}

fn write_certificates(folder: &Path) -> Result<Credentials, CliError> {
    let dir = folder.join("certs");
    let authority = Authority::create("slackline throw-away")?;
    authority.write_public(&dir)?;
    for role in Role::ALL {
        authority.issue(role, "local", THROW_AWAY_DAYS)?.write(&dir)?;
    }
    Ok(Credentials::load_from(&dir, Role::Operator)?)
}

fn certificates(role: &str) -> String {
    format!(
        "[certificates]\nca = \"certs/ca.pem\"\ncertificate = \"certs/{role}.pem\"\n\
         key = \"certs/{role}.key\"\n"
    )
}

/// The program of that name in the folder of this one.
fn beside_this_program(program: &str) -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(program))
}

fn last_line(member: &Member) -> String {
    let text = fs::read_to_string(&member.log).unwrap_or_default();
    text.lines().last().unwrap_or_default().to_owned()
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    fs::write(path, text).map_err(|source| CliError::Write { path: path.to_owned(), source })
}

fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(path).map_err(|source| CliError::Write { path: path.to_owned(), source })
}

/// A path as a TOML string.
fn quoted(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}
