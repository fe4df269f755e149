//! What leaves the core: messages, events, and the two things that take time (fetching the model,
//! writing the run's files).

use super::membership::MemberId;
use super::time::Millis;
use slackline_common::ids::{Fingerprint, SeatId};
use slackline_common::job::{Compress, Job, Mode};
use slackline_common::layout::Layout;
use slackline_common::wire::control::{Ended, Evaluated, ToServer, ToWorker};

/// Something to do. In the order they come.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this.
    ToWorker(MemberId, ToWorker),
    /// Send this.
    ToServer(MemberId, ToServer),
    /// End the connection of a member that is not one any more, after what was sent to it.
    Close(MemberId, String),
    /// Something people should know.
    Event(Event),
    /// How far training is.
    Progress(Progress),
    /// Pull the model from the servers; answered by `handle_model`.
    FetchModel(ModelSource),
    /// Write the run's last files; answered by `handle_concluded`.
    Conclude(Box<Outcome>),
    /// The job is over, for operators.
    Ended(Ended),
}

/// Something people should know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// When.
    pub at: Millis,
    /// Whether something is not as it should be.
    pub warning: bool,
    /// One word for machines: `joined`, `gone`, `waiting`, `evaluated`, …
    pub kind: &'static str,
    /// One sentence.
    pub text: String,
}

/// How far training is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// When.
    pub at: Millis,
    /// Global step.
    pub step: u64,
    /// Samples applied.
    pub samples: u64,
    /// Mean of the workers' latest training losses; NaN before the first.
    pub loss: f64,
    /// Result of a test of the model, when this reports one.
    pub test: Option<Evaluated>,
    /// Over the last seconds.
    pub steps_per_second: f64,
    /// Totals over all workers that ever took part.
    pub totals: Totals,
    /// Largest staleness seen on any shard.
    pub max_staleness: u64,
}

/// Byte counts of all workers that ever took part.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// Encoded gradients sent.
    pub payload_bytes_up: u64,
    /// Encoded parameters received.
    pub payload_bytes_down: u64,
    /// UDP payload sent to servers.
    pub wire_bytes_up: u64,
    /// UDP payload received from servers.
    pub wire_bytes_down: u64,
}

/// Where the model is.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSource {
    /// Its tensors.
    pub layout: Layout,
    /// The servers in the order of their numbers, with the words to name them by.
    pub servers: Vec<(MemberId, String)>,
    /// Shards of all servers.
    pub shards: u16,
    /// The job's hash, for the file's metadata.
    pub job_hash: Fingerprint,
    /// The global step last heard of.
    pub step: u64,
}

/// How a job went: what `summary.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether it ended as it should.
    pub ok: bool,
    /// One sentence.
    pub reason: String,
    /// Whether somebody ended it early.
    pub stopped: bool,
    /// The job.
    pub job: Box<Job>,
    /// Its hash.
    pub job_hash: Fingerprint,
    /// The layout, once it was known; the names and shapes of the model file.
    pub layout: Option<Layout>,
    /// Servers that took part.
    pub servers: u16,
    /// Global steps: versions in `bsp`, otherwise samples over the global batch.
    pub steps: u64,
    /// Samples applied.
    pub samples: u64,
    /// Samples of one pass; 0 when the job has no data of its own.
    pub samples_per_epoch: u64,
    /// From the workers' start to the last one's end.
    pub training: Millis,
    /// Mean over the seats that were not lost of the last training loss each reported; NaN without.
    pub final_loss: f64,
    /// The last test of the whole run, when there was one.
    pub test: Option<Evaluated>,
    /// Bytes.
    pub totals: Totals,
    /// Largest staleness seen on any shard.
    pub max_staleness: u64,
    /// Whole pushes applied by the shard that applied most: a raw client may push to some only.
    pub pushes_applied: u64,
    /// Contributions refused for NaN or infinity, all shards.
    pub contributions_refused: u64,
    /// Seats that were lost on the way.
    pub seats_lost: Vec<SeatId>,
}

/// A job's mode with its bound and how it travels, for people: `ssp, staleness 3`, `local, 32 steps a
/// round, 2 rules of compression`.
pub fn mode_text(job: &Job) -> String {
    let mut text = job.mode_name().to_owned();
    let mut say = |more: String| text = format!("{text}, {more}");
    if let Some(local) = &job.local {
        say(format!("{} steps a round", local.steps));
        if local.fragments > 1 {
            say(format!("{} fragments", local.fragments));
        }
    }
    match job.mode {
        Mode::Ssp { staleness } => say(format!("staleness {staleness}")),
        Mode::Asp { scale_by_staleness: true } => say("scaled by staleness".to_owned()),
        Mode::Bsp | Mode::Asp { .. } => {}
    }
    if job.in_flight > 1 {
        say(format!("{} in flight", job.in_flight));
    }
    match &job.compress {
        Compress::Off => {}
        Compress::Auto => say("compression by itself".to_owned()),
        Compress::Rules(rules) => match &rules[..] {
            [only] => say(only.codec.to_string()),
            rules => say(format!("{} rules of compression", rules.len())),
        },
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_common::config::parse_job;

    #[test]
    fn a_job_in_one_line_says_how_far_apart_and_how_it_travels() {
        let text = "name = \"j\"\nmode = \"bsp\"\nworkers = 1\nservers = 1\nepochs = 1\nbatch = 1\n\
                    [model]\nkind = \"softmax\"\ninputs = 64\nclasses = 10\n[data]\nformat = \"csv\"\n\
                    train = \"embedded:digits-train\"\n[optimizer]\nkind = \"sgd\"\nlearning_rate = 1\n";
        let line = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            mode_text(&parse_job(text, "j.toml", &sets).unwrap())
        };
        assert_eq!(line(&[]), "bsp");
        assert_eq!(line(&["mode=ssp", "staleness=3"]), "ssp, staleness 3");
        assert_eq!(line(&["mode=asp", "scale_by_staleness=true"]), "asp, scaled by staleness");
        assert_eq!(
            line(&["in_flight=4", "compress=auto"]),
            "bsp, 4 in flight, compression by itself"
        );
        let walk = ["mode=local", "local.steps=32", "local.inner={kind=\"sgd\",learning_rate=1}"];
        assert_eq!(line(&walk), "local, 32 steps a round");
        let rules = "compress=[{codec=\"sign\"},{codec=\"int8\"}]";
        let all = [&walk[..], &["local.fragments=4", "staleness=2", rules]].concat();
        assert_eq!(
            line(&all),
            "local, 32 steps a round, 4 fragments, staleness 2, 2 rules of compression"
        );
        assert_eq!(line(&["compress=int8"]), "bsp, int8 (nearest)");
    }
}
