//! What is wrong with a file, one line per fault.

use crate::blame::Blame;
use std::fmt;

/// One fault of a configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigError {
    /// The file as the person named it.
    pub file: String,
    /// Line of the key, from 1; absent when the fault has no place in the file.
    pub line: Option<usize>,
    /// Path of the key, dots between sections; empty when the fault is the whole file's.
    pub key: String,
    /// The value seen; empty when there is none.
    pub seen: String,
    /// What is expected instead.
    pub rule: String,
    /// Where the value came from when it did not come from the file: `the environment
    /// (SLACKLINE__STALENESS)` or `--set staleness=x`; empty otherwise.
    pub source: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        if !self.seen.is_empty() {
            write!(f, "{} is refused: ", self.seen)?;
        }
        f.write_str(&self.rule)?;
        if !self.source.is_empty() {
            write!(f, " (from {})", self.source)?;
        }
        Ok(())
    }
}

/// All faults of one file. Displays one line per fault, in the order of the reference; the move is
/// the person's who wrote the file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ConfigErrors(Vec<ConfigError>);

fn lines(errors: &[ConfigError]) -> String {
    errors.iter().map(ConfigError::to_string).collect::<Vec<_>>().join("\n")
}

impl ConfigErrors {
    /// Wraps at least one fault.
    pub(crate) fn new(errors: Vec<ConfigError>) -> Self {
        assert!(!errors.is_empty(), "a refusal names its fault");
        Self(errors)
    }

    /// The one fault of a file that could not even be read.
    pub(crate) fn of_file(file: &str, rule: String) -> Self {
        Self(vec![ConfigError {
            file: file.to_owned(),
            line: None,
            key: String::new(),
            seen: String::new(),
            rule,
            source: String::new(),
        }])
    }

    /// The one fault of an override that has no place in any file.
    pub(crate) fn of_override(source: &str, key: &str, rule: &str) -> Self {
        Self(vec![ConfigError {
            file: "overrides".to_owned(),
            line: None,
            key: key.to_owned(),
            seen: String::new(),
            rule: rule.to_owned(),
            source: source.to_owned(),
        }])
    }

    /// Gives the first fault its line.
    pub(crate) fn set_line(&mut self, line: Option<usize>) {
        self.0[0].line = line;
    }

    /// The faults, as faults of `file`.
    pub(crate) fn into_faults_of(self, file: &str) -> impl Iterator<Item = ConfigError> {
        self.0.into_iter().map(move |fault| ConfigError { file: file.to_owned(), ..fault })
    }

    /// The faults, at least one.
    pub fn errors(&self) -> &[ConfigError] {
        &self.0
    }

    /// Always the person's move.
    pub const fn blame(&self) -> Blame {
        Blame::Config
    }
}
