//! A cluster of the real programs on loopback, member by member, for tests that need to hurt one.

use crate::clock::wait_for;
use crate::relay::Relay;
use crate::script::{Driver, Op, Report};
use slackline_common::quic::endpoint::MTU_LOOPBACK;
use slackline_common::quic::{Authority, Credentials};
use slackline_common::role::Role;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longest a healthy step of a test may take on a loaded machine. Reaching it is a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A program's path: whole-system tests run beside the programs (`make test` builds them first).
pub fn program(name: &str) -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let path = folder.join(name);
    assert!(path.exists(), "{} is not built: run `make test`", path.display());
    path
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Where the root's job files are.
pub fn job_file(name: &str) -> PathBuf {
    root().join("configs/jobs").join(name)
}

/// A member's handle in its [`Cluster`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemberId(usize);

#[derive(Debug)]
struct Member {
    label: String,
    child: Child,
    log: PathBuf,
}

/// Running processes and their folder. Dropping it ends those that still run, by their own handles.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    members: Vec<Member>,
    /// Where the coordinator listens.
    pub coordinator: String,
    mtu: u16,
}

impl Cluster {
    /// Starts a coordinator. `extra` is TOML put before its `[certificates]`.
    pub fn new(extra: &str) -> Self {
        Self::with_mtu(MTU_LOOPBACK, extra)
    }

    /// As [`Cluster::new`], with packets of another size for every member that is started here.
    pub fn with_mtu(mtu: u16, extra: &str) -> Self {
        let folder = TempDir::with_prefix("slackline-test-").unwrap();
        let certs = folder.path().join("certs");
        let authority = Authority::create("test").unwrap();
        authority.write(&certs).unwrap();
        for role in Role::ALL {
            authority.issue(role, "test", 1).unwrap().write(&certs).unwrap();
        }
        let mut cluster = Self { folder, members: Vec::new(), coordinator: String::new(), mtu };
        let address = cluster.path("address");
        let runs = cluster.path("runs");
        let config =
            format!("listen = \"127.0.0.1:0\"\nrun_dir = {runs:?}\nmtu = {mtu}\n{extra}\n");
        let flag = format!("--address-file={}", address.display());
        let id = cluster.start("coordinator", "coordinator", &config, &[&flag]);
        cluster.coordinator = wait_for(
            "the coordinator's address",
            PATIENCE,
            || fs::read_to_string(&address).ok().map(|text| text.trim().to_owned()),
            || cluster.log(id),
        );
        cluster
    }

    /// A path in the cluster's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder with every role's certificates and the authority's key.
    pub fn certificates(&self) -> PathBuf {
        self.path("certs")
    }

    /// Certificates of a role.
    pub fn credentials(&self, role: Role) -> Credentials {
        Credentials::load_from(&self.certificates(), role).unwrap()
    }

    /// A member's process, to look at.
    pub fn pid(&self, id: MemberId) -> u32 {
        self.members[id.0].child.id()
    }

    /// The coordinator's handle.
    pub const fn coordinator_id(&self) -> MemberId {
        MemberId(0)
    }

    /// Starts a server. `extra` is TOML put before its `[certificates]`.
    pub fn server(&mut self, extra: &str) -> MemberId {
        let config = format!(
            "listen = \"127.0.0.1:0\"\ncoordinator = \"{}\"\nmtu = {}\n{extra}\n",
            self.coordinator, self.mtu
        );
        self.start(&format!("server-{}", self.members.len()), "server", &config, &[])
    }

    /// Starts a server that workers are told to reach through `relay`.
    pub fn server_behind(&mut self, relay: &Relay) -> MemberId {
        let id = self.server(&format!("advertise = \"{}\"", relay.address()));
        let line = self.wait_for_line(id, "listening on ");
        let (_, address) = line.rsplit_once("listening on ").unwrap();
        relay.lead_to(address.trim().parse().unwrap());
        id
    }

    /// Starts a worker. `extra` is TOML put before its `[certificates]`.
    pub fn worker(&mut self, extra: &str) -> MemberId {
        let config = format!(
            "coordinator = \"{}\"\ndata_dir = {:?}\nmtu = {}\n{extra}\n",
            self.coordinator,
            root(),
            self.mtu
        );
        self.start(&format!("worker-{}", self.members.len()), "worker", &config, &[])
    }

    /// Starts a member of any role with the config as given and the role's own certificates.
    pub fn start(&mut self, label: &str, role: &str, config: &str, flags: &[&str]) -> MemberId {
        let certificates = format!(
            "[certificates]\nca = \"certs/ca.pem\"\ncertificate = \"certs/{role}.pem\"\n\
             key = \"certs/{role}.key\"\n"
        );
        let path = self.path(&format!("{label}.toml"));
        fs::write(&path, format!("{config}{certificates}")).unwrap();
        let log = self.path(&format!("{label}.log"));
        let file = fs::File::create(&log).unwrap();
        let child = Command::new(program(&format!("slackline-{role}")))
            .arg("--config")
            .arg(&path)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        self.members.push(Member { label: label.to_owned(), child, log });
        MemberId(self.members.len() - 1)
    }

    /// Starts a `slackline submit` that watches its job to the end.
    pub fn submitter(&mut self, job: &Path, sets: &[&str]) -> MemberId {
        let label = format!("submit-{}", self.members.len());
        let log = self.path(&format!("{label}.log"));
        let file = fs::File::create(&log).unwrap();
        let child = Command::new(program("slackline"))
            .args(["submit", "--coordinator", &self.coordinator])
            .arg("--certificates")
            .arg(self.certificates())
            .arg(job)
            .args(sets.iter().flat_map(|set| ["--set", set]))
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        self.members.push(Member { label, child, log });
        MemberId(self.members.len() - 1)
    }

    /// Starts one client process that plays `scripts`, each in the seat beside it, all at once.
    pub fn client(&mut self, driver: Driver, scripts: &[(u16, Vec<Op>)]) -> MemberId {
        let label = format!("client-{}", self.members.len());
        let mut command = Command::new(program("slackline-test-client"));
        command.arg(&self.coordinator).arg(self.certificates());
        for (seat, script) in scripts {
            let path = self.path(&format!("{label}-{seat}.json"));
            fs::write(&path, serde_json::to_string(script).unwrap()).unwrap();
            command.arg(seat.to_string()).arg(driver.name()).arg(path);
        }
        let (log, said) = (self.path(&format!("{label}.log")), self.path(&format!("{label}.out")));
        let child = command
            .stdin(Stdio::null())
            .stdout(fs::File::create(said).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        self.members.push(Member { label, child, log });
        MemberId(self.members.len() - 1)
    }

    /// Waits until a client has ended well; returns its report for each script.
    pub fn reports(&mut self, id: MemberId) -> Vec<Report> {
        let status = self.wait_for_end(id);
        assert!(status.success(), "{} ended with {status}; {}", self.label(id), self.logs());
        let said = fs::read_to_string(self.path(&format!("{}.out", self.label(id)))).unwrap();
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until one of `ids` has ended by itself.
    pub fn first_to_end(&mut self, ids: &[MemberId]) -> MemberId {
        let members = &mut self.members;
        let ended = || ids.iter().find(|id| members[id.0].child.try_wait().unwrap().is_some());
        *wait_for("one of the clients to end", PATIENCE, ended, || "none has".to_owned())
    }

    fn label(&self, id: MemberId) -> &str {
        &self.members[id.0].label
    }

    /// Runs the command line against this cluster and waits for it.
    pub fn slackline(&self, command: &str, arguments: &[&str]) -> Output {
        Command::new(program("slackline"))
            .arg(command)
            .args(["--coordinator", &self.coordinator])
            .arg("--certificates")
            .arg(self.certificates())
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Submits a job and returns once the coordinator has taken it.
    pub fn submit(&self, job: &Path, sets: &[&str]) {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let arguments: Vec<_> =
            [job.to_str().unwrap(), "--detach"].into_iter().chain(sets).collect();
        let output = self.slackline("submit", &arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Everything a member has said.
    pub fn log(&self, id: MemberId) -> String {
        fs::read_to_string(&self.members[id.0].log).unwrap_or_default()
    }

    /// Everything everybody has said, for failure messages.
    pub fn logs(&self) -> String {
        let one = |member: &Member| {
            let text = fs::read_to_string(&member.log).unwrap_or_default();
            format!("--- {}\n{text}", member.label)
        };
        self.members.iter().map(one).collect()
    }

    /// Waits until a member has said `text`; returns the line.
    pub fn wait_for_line(&self, id: MemberId, text: &str) -> String {
        wait_for(
            &format!("{text:?} from {}", self.members[id.0].label),
            PATIENCE,
            || self.log(id).lines().find(|line| line.contains(text)).map(str::to_owned),
            || self.logs(),
        )
    }

    /// Waits until a member has ended by itself.
    pub fn wait_for_end(&mut self, id: MemberId) -> ExitStatus {
        let logs = self.path("");
        let member = &mut self.members[id.0];
        wait_for(
            &format!("{} to end", member.label),
            PATIENCE,
            || member.child.try_wait().unwrap(),
            || format!("logs in {}: {}", logs.display(), fs::read_to_string(&member.log).unwrap()),
        )
    }

    /// `kill -9`.
    pub fn kill(&mut self, id: MemberId) {
        self.members[id.0].child.kill().unwrap();
        self.members[id.0].child.wait().unwrap();
    }

    /// Sends a signal by name, to this member alone.
    pub fn signal(&self, id: MemberId, name: &str) {
        let pid = self.members[id.0].child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(status.success());
    }

    /// The run's `summary.json`, once it is there.
    pub fn summary(&self, run: &str) -> serde_json::Value {
        let path = self.path("runs").join(run).join("summary.json");
        wait_for(
            "summary.json",
            PATIENCE,
            || serde_json::from_str(&fs::read_to_string(&path).ok()?).ok(),
            || self.logs(),
        )
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill(); // already over is fine
            let _ = member.child.wait();
        }
    }
}
