//! How progress looks: a bar when a person watches, log lines in a pipe, JSON lines on request.

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use slackline_common::wire::control::{ClusterStatus, Ended, Fidelity, MemberStatus};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// Log lines in a pipe come no faster than this.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Shows status messages as they come.
pub(crate) enum Display {
    /// A terminal.
    Bar(ProgressBar),
    /// A pipe or file.
    Lines {
        /// When the last line was printed.
        last: Option<Instant>,
    },
    /// JSON lines.
    Json,
}

impl Display {
    /// Chooses by where the output goes.
    pub(crate) fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        if !std::io::stderr().is_terminal() {
            return Self::Lines { last: None };
        }
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} % {elapsed} {msg}")
            .expect("a constant template");
        Self::Bar(ProgressBar::new(0).with_style(style))
    }

    /// One status.
    pub(crate) fn show(&mut self, status: &ClusterStatus) {
        match self {
            Self::Json => println!("{}", status_json(status)),
            Self::Bar(bar) => {
                bar.set_length(status.samples_total.max(1));
                bar.set_position(status.samples);
                bar.set_message(one_line(status));
            }
            Self::Lines { last } => {
                if last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
                    *last = Some(Instant::now());
                    eprintln!("{}", one_line(status));
                }
            }
        }
    }

    /// A sentence that must not be lost among the progress.
    pub(crate) fn note(&self, sentence: &str) {
        match self {
            Self::Json => println!("{}", serde_json::json!({ "event": sentence })),
            Self::Bar(bar) => bar.println(sentence),
            Self::Lines { .. } => eprintln!("{sentence}"),
        }
    }

    /// The end of the job.
    pub(crate) fn finish(&mut self, ended: &Ended, summary: Option<&str>, run_dir: &str) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
        if let Self::Json = self {
            let summary: Option<serde_json::Value> =
                summary.and_then(|text| serde_json::from_str(text).ok());
            println!(
                "{}",
                serde_json::json!({
                    "ok": ended.ok, "reason": ended.reason, "run_dir": run_dir, "summary": summary,
                })
            );
            return;
        }
        if ended.ok {
            println!("{}", summary.map_or_else(String::new, summary_lines));
        } else if ended.blame.is_none() {
            println!("{}", ended.reason);
        }
        println!("run folder     {run_dir}");
    }
}

/// The summary's main figures, one a line.
fn summary_lines(text: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let number = |key: &str| value[key].as_f64();
    let mut out = String::new();
    let mut line = |label: &str, text: Option<String>| {
        if let Some(text) = text {
            let _ = writeln!(out, "{label:<14} {text}");
        }
    };
    line("test accuracy", number("test_accuracy").map(|x| format!("{x:.4}")));
    line("final loss", number("final_loss").map(|x| format!("{x:.4}")));
    line("wall time", number("wall_seconds").map(|x| format!("{x:.1} s")));
    line("global steps", value["steps"].as_u64().map(|x| x.to_string()));
    line("samples", value["samples"].as_u64().map(|x| x.to_string()));
    line("max staleness", value["max_staleness"].as_u64().map(|x| x.to_string()));
    let bytes = |key: &str| value[key].as_u64().map(|x| HumanBytes(x).to_string());
    line("payload up", bytes("payload_bytes_up"));
    line("payload down", bytes("payload_bytes_down"));
    line("model hash", value["model_hash"].as_str().map(str::to_owned));
    out.pop();
    out
}

/// One line for the bar and for pipes.
fn one_line(status: &ClusterStatus) -> String {
    if !status.missing.is_empty() {
        return format!("{} {}", status.phase, status.missing.join("; "));
    }
    let figure = |value: f64, digits: usize| {
        if value.is_nan() { "–".to_owned() } else { format!("{value:.digits$}") }
    };
    format!(
        "{} epoch {} step {} loss {} accuracy {} {:.0} steps/s up {} down {} staleness {}",
        status.phase,
        status.epoch,
        status.step,
        figure(status.loss, 4),
        figure(status.accuracy, 4),
        status.steps_per_second,
        HumanBytes(status.payload_bytes_up),
        HumanBytes(status.payload_bytes_down),
        status.max_staleness,
    )
}

/// A status as one JSON object.
pub(crate) fn status_json(status: &ClusterStatus) -> String {
    serde_json::to_string(status).expect("a status is plain data")
}

/// A status as a page.
pub(crate) fn status_page(status: &ClusterStatus) -> String {
    let mut out = format!("{}\n", one_line(status));
    if !status.job.is_empty() {
        let _ = writeln!(out, "job {} ({}), {:.1} s", status.job, status.mode, status.seconds);
    }
    for member in &status.members {
        let _ = writeln!(out, "{}", member_line(member));
    }
    for sentence in &status.missing {
        let _ = writeln!(out, "missing: {sentence}");
    }
    out
}

fn member_line(member: &MemberStatus) -> String {
    let number = member.number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let mut line = format!(
        "{:<7} {number:>3} {:<24} {:<21} {:<10} clock {:<6} heard {:.1} s ago",
        member.role,
        member.name,
        member.address,
        format!("{:?}", member.phase).to_lowercase(),
        member.clock,
        Duration::from_millis(member.silent_millis).as_secs_f64(),
    );
    if member.role == "worker" {
        let (up, down) = member.payload_bytes;
        let _ = write!(
            line,
            " staleness {} samples {} up {} down {} waiting for {}",
            member.staleness,
            member.samples,
            HumanBytes(up),
            HumanBytes(down),
            HumanBytes(member.bytes_outstanding),
        );
    }
    if let Some(coding) = &member.coding {
        let _ = write!(line, " coding {coding}");
    }
    if let Some(Fidelity { cosine, norm_ratio, residual_ratio, age_steps }) = member.fidelity {
        let _ = write!(
            line,
            " cosine {cosine:.2} norm {norm_ratio:.2} owed {residual_ratio:.1} age {age_steps:.0}"
        );
    }
    if let Some(gone) = &member.gone {
        let _ = write!(line, " gone: {gone}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_member_is_what_the_line_says() {
        let status = ClusterStatus {
            phase: "gathering".to_owned(),
            missing: vec!["waiting for 1 of 2 servers (3 s)".to_owned()],
            ..ClusterStatus::default()
        };
        assert_eq!(one_line(&status), "gathering waiting for 1 of 2 servers (3 s)");
    }

    #[test]
    fn figures_that_are_not_there_yet_are_dashes() {
        let status = ClusterStatus { loss: f64::NAN, accuracy: 0.5, ..ClusterStatus::default() };
        assert!(one_line(&status).contains("loss – accuracy 0.5000"));
    }

    #[test]
    fn the_summary_shows_what_it_has_and_nothing_else() {
        let lines = summary_lines(r#"{"test_accuracy": 0.97, "steps": 12, "model_hash": "ab"}"#);
        assert_eq!(lines, "test accuracy  0.9700\nglobal steps   12\nmodel hash     ab");
        assert_eq!(summary_lines("not json"), "");
    }
}
