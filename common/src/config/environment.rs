//! Values from outside the file: `SLACKLINE__SECTION__KEY=value` for containers and
//! `--set section.key=value` for one run. Both are read as TOML and, where that fails, as text, so
//! that words need no quotes. An empty value takes the key out of the file.

use super::ConfigErrors;
use super::reader::shown;
use toml::{Table, Value};

/// Environment variables that start like this are ours; the rest is the names of the key's path in
/// any case, `__` between them.
pub const ENVIRONMENT_PREFIX: &str = "SLACKLINE__";
/// Most names in the path of one override; no file nests deeper than 3.
const PATH_NAMES_MAX: usize = 8;

/// One value that replaces the file's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Override {
    /// Names from the outside in; at least one.
    pub(super) path: Vec<String>,
    /// The value as it was given.
    pub(super) raw: String,
    /// Whom to name when it is refused.
    pub(super) source: String,
}

/// The variables of this process that are ours. Names or values that are not Unicode are read with
/// replacement characters, which no key accepts.
pub fn process_environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .map(|(name, value)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        })
        .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX))
        .collect()
}

/// Applies one `a.b=c` to a table. Text needs no quotes; an empty value takes the key out.
///
/// # Errors
/// There is no `=`, a name of the path is empty, or the path leads through a value.
pub fn apply_set(table: &mut Table, set: &str) -> Result<(), ConfigErrors> {
    Override::from_set(set)?.apply(table)
}

impl Override {
    /// Reads the argument of one `--set`.
    pub(super) fn from_set(set: &str) -> Result<Self, ConfigErrors> {
        let source = format!("--set {}", shown(set));
        let refuse = |rule: &str| ConfigErrors::of_override(&source, "", rule);
        let Some((path, raw)) = set.split_once('=') else {
            return Err(refuse("write --set key=value or --set section.key=value"));
        };
        Self::new(path.split('.').map(|name| name.trim().to_owned()).collect(), raw, source)
    }

    /// Reads the variables that are ours and leaves the others alone.
    pub(super) fn from_environment(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Vec<Result<Self, ConfigErrors>> {
        variables
            .into_iter()
            .filter_map(|(name, raw)| {
                let path = name.strip_prefix(ENVIRONMENT_PREFIX)?;
                let path = path.split("__").map(str::to_lowercase).collect();
                Some(Self::new(path, &raw, format!("the environment, {name}")))
            })
            .collect()
    }

    fn new(path: Vec<String>, raw: &str, source: String) -> Result<Self, ConfigErrors> {
        if path.iter().any(String::is_empty) || path.len() > PATH_NAMES_MAX {
            let rule = format!("a path has 1 to {PATH_NAMES_MAX} names, none of them empty");
            return Err(ConfigErrors::of_override(&source, &path.join("."), &rule));
        }
        Ok(Self { path, raw: raw.trim().to_owned(), source })
    }

    /// Puts the value where the path leads, making sections on the way. A number leads to that table
    /// of a list, from 0.
    pub(super) fn apply(&self, table: &mut Table) -> Result<(), ConfigErrors> {
        let (last, sections) = self.path.split_last().expect("`new` refuses an empty path");
        let refuse = |rule: String| {
            Err(ConfigErrors::of_override(&self.source, &self.path.join("."), &rule))
        };
        let mut at = table;
        let mut names = sections.iter().enumerate();
        while let Some((depth, name)) = names.next() {
            if self.raw.is_empty() && !at.contains_key(name) {
                return Ok(());
            }
            let shown = |depth: usize| self.path[..=depth].join(".");
            let mut below = at.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
            let mut depth = depth;
            if let Value::Array(list) = below {
                let Some((index_depth, index)) = names.next() else {
                    return refuse(format!("{} is a list: replace it whole", shown(depth)));
                };
                let count = list.len();
                let Some(one) = index.parse().ok().and_then(|at: usize| list.get_mut(at)) else {
                    let rule = format!("{} is a list of {count}, from 0", shown(depth));
                    return refuse(rule);
                };
                (below, depth) = (one, index_depth);
            }
            let Value::Table(below) = below else {
                return refuse(format!("{} is a value, not a section", shown(depth)));
            };
            at = below;
        }
        if self.raw.is_empty() {
            at.remove(last);
        } else {
            let value = self.raw.parse().unwrap_or_else(|_| Value::String(self.raw.clone()));
            at.insert(last.clone(), value);
        }
        Ok(())
    }
}
