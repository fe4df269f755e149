//! Cases that other systems are tested by, replayed through real processes: one coordinator, servers,
//! and client processes that play scripts. Each test begins with its story.

mod first_values;
mod frames;
mod invalid;
mod key_value;
mod rounds;
mod slack;
mod stopped;

use slackline_common::ids::Fingerprint;
use slackline_common::layout::Dtype;
use std::collections::BTreeMap;
use std::fs;
use tests::cluster::{Cluster, MemberId};
use tests::relay::Relay;
use tests::script::{Answer, Declared, Driver, Named, Op, Report, Values};

/// The name of every run here.
const RUN: &str = "case";
/// The plain gradient step `w -= g`.
const SGD: &str = "kind = \"sgd\"\nlearning_rate = 1.0";
/// `w += push`.
const ADD: &str = "kind = \"add\"\nlearning_rate = 1.0";

/// A job that clients drive. `mode` are lines of the job itself, `optimizer` those of its section.
fn job(mode: &str, workers: u16, servers: u16, optimizer: &str) -> String {
    format!(
        "name = \"{RUN}\"\n{mode}\nworkers = {workers}\nservers = {servers}\n\n\
         [model]\nkind = \"external\"\n\n[optimizer]\n{optimizer}\n"
    )
}

/// A cluster with a job, and the clients that drive it.
struct Case {
    cluster: Cluster,
    servers: Vec<MemberId>,
    clients: Vec<MemberId>,
}

/// How a case ended: all programs by themselves and well.
struct Ending {
    reports: BTreeMap<u16, Report>,
    summary: serde_json::Value,
    /// What the coordinator said.
    log: String,
}

impl Case {
    fn new(job: &str, servers: u16) -> Self {
        let mut cluster = Cluster::new("");
        let servers = (0..servers).map(|_| cluster.server("")).collect();
        Self::with(job, cluster, servers)
    }

    /// As [`Case::new`], with one server behind each of `relays`.
    fn through(job: &str, relays: &[Relay]) -> Self {
        let mut cluster = Cluster::new("");
        let servers = relays.iter().map(|relay| cluster.server_behind(relay)).collect();
        Self::with(job, cluster, servers)
    }

    fn with(job: &str, cluster: Cluster, servers: Vec<MemberId>) -> Self {
        let path = cluster.path("job.toml");
        fs::write(&path, job).unwrap();
        cluster.submit(&path, &[]);
        Self { cluster, servers, clients: Vec::new() }
    }

    /// A process with one seat.
    fn client(&mut self, seat: u16, script: Vec<Op>) {
        self.clients.push(self.cluster.client(Driver::Client, &[(seat, script)]));
    }

    /// A process whose frames are made by hand.
    fn hand(&mut self, seat: u16, script: Vec<Op>) {
        self.clients.push(self.cluster.client(Driver::Frames, &[(seat, script)]));
    }

    /// Waits for the clients, then for the rest: the last client to leave ends the job, and with it
    /// the coordinator and the servers.
    fn finish(mut self) -> Ending {
        let mut reports = BTreeMap::new();
        for id in std::mem::take(&mut self.clients) {
            let said = self.cluster.reports(id);
            reports.extend(said.into_iter().map(|report| (report.seat, report)));
        }
        for id in [self.cluster.coordinator_id()].into_iter().chain(self.servers) {
            let status = self.cluster.wait_for_end(id);
            assert!(status.success(), "{status}; {}", self.cluster.logs());
        }
        let summary = self.cluster.summary(RUN);
        let log = self.cluster.log(self.cluster.coordinator_id());
        let ending = Ending { reports, summary, log };
        assert_eq!(ending.summary["ok"], true, "{}", ending.summary);
        assert!(ending.summary["model_hash"].is_string(), "{}", ending.summary);
        ending
    }
}

impl Ending {
    /// The answers of a seat, in the order of its script.
    fn answers(&self, seat: u16) -> &[Answer] {
        &self.reports[&seat].answers
    }

    /// What a seat's pulls brought, in order.
    fn pulls(&self, seat: u16) -> Vec<&[Values]> {
        let mut pulls = Vec::new();
        for answer in self.answers(seat) {
            if let Answer::Pulled { values, .. } = answer {
                pulls.push(values.as_slice());
            }
        }
        pulls
    }

    /// How far ahead of the slowest seat each pull of a seat was answered.
    fn staleness(&self, seat: u16) -> Vec<u64> {
        let seen = |answer: &Answer| match answer {
            Answer::Pulled { staleness, .. } => Some(*staleness),
            _ => None,
        };
        self.answers(seat).iter().filter_map(seen).collect()
    }

    /// The kinds and words of a seat's failures, in order.
    fn failures(&self, seat: u16) -> Vec<(&str, &str)> {
        let mut failures = Vec::new();
        for answer in self.answers(seat) {
            if let Answer::Failed { kind, text } = answer {
                failures.push((kind.as_str(), text.as_str()));
            }
        }
        failures
    }

    /// The seats' common word on whose first values count.
    fn winner(&self) -> u16 {
        let won = |answer: &Answer| match answer {
            Answer::Winner(seat) => Some(*seat),
            _ => None,
        };
        let mut winners: Vec<_> =
            self.reports.values().flat_map(|report| &report.answers).filter_map(won).collect();
        winners.dedup();
        assert_eq!(winners.len(), 1, "the seats name different winners: {winners:?}");
        winners[0]
    }

    fn number(&self, field: &str) -> u64 {
        self.summary[field].as_u64().unwrap_or_else(|| panic!("{field} in {}", self.summary))
    }

    /// The model that the coordinator fetched has exactly these values, in the layout's order.
    fn check_model(&self, values: impl IntoIterator<Item = f32>) {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let expected = Fingerprint::of(&bytes).to_string();
        assert_eq!(self.summary["model_hash"], expected, "{}", self.summary);
    }
}

/// Names with one value for all elements of each.
fn filled(names: &[&str], value: f32) -> Named {
    names.iter().map(|name| ((*name).to_owned(), Values::Fill(value))).collect()
}

/// One tensor with its values.
fn named(name: &str, values: &[f32]) -> Named {
    vec![(name.to_owned(), Values::List(values.to_vec()))]
}

fn pull(names: &[&str]) -> Op {
    Op::Pull(names.iter().map(|name| (*name).to_owned()).collect())
}

/// Values as the client reports them, from what they should be.
fn exactly(values: &[f32]) -> Values {
    Values::of(values.to_vec())
}

/// Every element of both within a few roundings.
fn assert_close(got: &[Values], expected: &[&[f32]]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        let got = got.expand(expected.len());
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(*expected) {
            assert!((got - expected).abs() <= expected.abs() * 2e-7, "{got} is not {expected}");
        }
    }
}

/// A tensor in `f32` or `f16`.
fn declared(name: &str, shape: &[u64], dtype: Dtype, value: f32) -> Declared {
    Declared::new(name, shape, Values::Fill(value)).held_in(dtype)
}
