//! What is wrong and what comes of it: one clear line (where, what was seen, what is allowed), the
//! right exit code, and nobody else notices.

mod certificates;
mod commands;
mod config;
mod data;
mod network;
mod seat;

use std::path::Path;
use std::process::{Command, Stdio};
use tests::cluster::program;

/// A person must change something.
const CONFIG: i32 = 64;
/// A peer is not there.
const UNREACHABLE: i32 = 69;

/// How a program ended.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Said {
    /// The program's own sentence: its last line that is not a log line.
    fn line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    /// Asserts the exit code and that the last line has every part.
    fn check(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.line().contains(part), "{part:?} is not in {:?}", self.line());
        }
        assert!(!self.stderr.contains("panicked"), "{self:?}");
    }
}

/// Runs a program in a folder to its end.
fn run(folder: &Path, name: &str, arguments: &[&str]) -> Said {
    let output = Command::new(program(name))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Said {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
