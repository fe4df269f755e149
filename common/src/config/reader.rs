//! Walks a TOML table by the tables of [`super::table`] and collects every fault of a file.

use super::environment::Override;
use super::table::{Fallback, Key, Kind, NAME_BYTES_MAX, Section};
use super::values::{Refusal, Values, check};
use super::{ConfigError, ConfigErrors};
use crate::limits::CONFIG_BYTES_MAX;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// Characters of a value that an error shows; a line stays a line.
const SHOWN_CHARACTERS_MAX: usize = 80;
/// A name this many edits away (or a third of its length) is taken for a slip.
const EDITS_MAX: usize = 2;

/// A file being read.
#[derive(Debug)]
pub(super) struct Document {
    file: String,
    table: Table,
    /// Lines of keys by path.
    lines: BTreeMap<String, usize>,
    /// Overrides by path.
    overrides: BTreeMap<String, Override>,
    errors: Vec<ConfigError>,
}

/// Reads a whole file into text, in one line when that fails.
pub(super) fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    let file = path.display().to_string();
    let refuse = |rule: String| ConfigErrors::of_file(&file, rule);
    let open = std::fs::File::open(path);
    let open = open.map_err(|error| refuse(format!("cannot be opened: {error}")))?;
    let mut bytes = Vec::new();
    let read = open.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| refuse(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(refuse(too_large()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        refuse(format!("is not UTF-8 text: byte {at} starts no character"))
    })
}

fn too_large() -> String {
    format!("is larger than {CONFIG_BYTES_MAX} bytes, which no configuration is")
}

impl Document {
    /// Parses `text` and lays the overrides over it. Overrides that were refused are kept as faults.
    pub(super) fn parse(
        text: &str,
        origin: &str,
        overrides: Vec<Result<Override, ConfigErrors>>,
    ) -> Result<Self, ConfigErrors> {
        if text.len() as u64 > CONFIG_BYTES_MAX {
            return Err(ConfigErrors::of_file(origin, too_large()));
        }
        let table = text.parse::<Table>().map_err(|error| {
            let mut fault =
                ConfigErrors::of_file(origin, format!("is not TOML: {}", shown(error.message())));
            fault.set_line(error.span().map(|span| line_of(text, span.start)));
            fault
        })?;
        let mut document = Self {
            file: origin.to_owned(),
            table,
            lines: lines_of(text),
            overrides: BTreeMap::new(),
            errors: Vec::new(),
        };
        for given in overrides {
            match given.and_then(|one| one.apply(&mut document.table).map(|()| one)) {
                Ok(one) => drop(document.overrides.insert(one.path.join("."), one)),
                Err(faults) => document.errors.extend(faults.into_faults_of(origin)),
            }
        }
        Ok(document)
    }

    /// Whether the file has the section at all.
    pub(super) fn has(&self, section: &Section) -> bool {
        self.table.contains_key(section.name)
    }

    /// Reads one section: every key of its table is checked, every other key is refused.
    pub(super) fn section(&mut self, section: &'static Section) -> Values {
        let table = if section.name.is_empty() {
            self.table.clone()
        } else {
            match self.table.get(section.name) {
                Some(Value::Table(table)) => table.clone(),
                Some(other) => {
                    let rule = format!("must be a section, not {}", type_of(other));
                    self.push(section.name, shown_value(other), rule);
                    return Values::default();
                }
                None if section.required => {
                    let rule = format!("missing section [{}]: {}", section.name, section.doc);
                    self.push(section.name, String::new(), rule);
                    return Values::default();
                }
                None => Table::new(),
            }
        };
        let mut values = Values::default();
        let kind = self.kind_of(section, &table);
        values.kind = kind.flatten();
        let variant = values.kind.and_then(|name| section.variant(name));
        for key in section.keys.iter().chain(variant.map_or(&[][..], |variant| variant.keys)) {
            self.value(section, key, &table, &mut values);
        }
        // When the kind itself is refused, nobody knows which keys are unknown.
        if kind.is_some() {
            self.refuse_unknown(section, values.kind, &table);
        }
        values
    }

    /// `None`: the kind was refused. `Some(None)`: the section has no kinds.
    fn kind_of(&mut self, section: &Section, table: &Table) -> Option<Option<&'static str>> {
        if section.kinds.is_empty() {
            return Some(None);
        }
        let names: Vec<_> = section.kinds.iter().map(|variant| variant.name).collect();
        let path = section.path("kind");
        let rule = format!("must be {}", super::table::one_of(&names));
        match table.get("kind") {
            None if section.kind_fallback.is_some() => Some(section.kind_fallback),
            None => {
                self.push(&path, String::new(), format!("missing: it {rule}"));
                None
            }
            Some(Value::String(name)) if section.variant(name).is_some() => {
                Some(section.variant(name).map(|variant| variant.name))
            }
            Some(other) => {
                let rule = match other {
                    Value::String(name) => rule + &did_you_mean(name, &names),
                    other => format!("{rule}, not {}", type_of(other)),
                };
                self.push(&path, shown_value(other), rule);
                None
            }
        }
    }

    fn value(&mut self, section: &Section, key: &'static Key, table: &Table, to: &mut Values) {
        let path = section.path(key.name);
        let value = match (table.get(key.name), key.fallback) {
            (Some(value), _) => {
                to.given.insert(key.name);
                self.as_text_if_override(&path, key.kind, value)
            }
            (None, Fallback::Is(default)) => {
                default.parse().expect("a default in a table is a TOML value")
            }
            (None, Fallback::Absent) => return,
            (None, Fallback::Required) => {
                let rule = format!("missing: it must be {}", key.kind.rule());
                return self.push(&path, String::new(), rule);
            }
        };
        match check(key.kind, &value) {
            Ok(checked) => drop(to.values.insert(key.name, checked)),
            Err(Refusal::Rule(note)) => {
                let rule = format!("must be {}{note}", key.kind.rule());
                self.push(&path, shown_value(&value), rule);
            }
            Err(Refusal::Reserved(word, instead)) => {
                let rule = format!(
                    "{} = {word:?} is not available in this version: use {instead}",
                    key.name
                );
                self.push(&path, String::new(), rule);
            }
        }
    }

    /// `--set name=42` means the text `42`: words from outside need no quotes.
    fn as_text_if_override(&self, path: &str, kind: Kind, value: &Value) -> Value {
        let scalar = !matches!(value, Value::String(_) | Value::Array(_) | Value::Table(_));
        let text = matches!(kind, Kind::Text | Kind::Name | Kind::Texts | Kind::Word { .. });
        match self.overrides.get(path) {
            Some(given) if text && scalar => Value::String(given.raw.clone()),
            _ => value.clone(),
        }
    }

    fn refuse_unknown(&mut self, section: &Section, kind: Option<&str>, table: &Table) {
        let variant = kind.and_then(|name| section.variant(name));
        let keys = section.keys.iter().chain(variant.map_or(&[][..], |variant| variant.keys));
        let mut known: Vec<&str> = keys.map(|key| key.name).collect();
        known.extend(section.sections.iter().map(|below| below.name));
        if !section.kinds.is_empty() {
            known.push("kind");
        }
        for (name, _) in table.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            let rule = format!("unknown key{}", hint(section, name, kind, &known));
            self.push(&section.path(&shown_key(name)), String::new(), rule);
        }
    }

    /// Records a fault that concerns the key at `path`, with the value seen there.
    pub(super) fn refuse(&mut self, path: &str, rule: impl Into<String>) {
        let seen = path.split('.').try_fold(None, |at: Option<&Value>, name| match at {
            None => self.table.get(name).map(Some),
            Some(at) => at.get(name).map(Some),
        });
        let seen = seen.flatten().filter(|value| !value.is_table());
        let seen = seen.map(shown_value).unwrap_or_default();
        self.push(path, seen, rule.into());
    }

    fn push(&mut self, path: &str, seen: String, rule: String) {
        // An override of the key itself, or of the section around it.
        let source = self
            .overrides
            .get(path)
            .or_else(|| path.rsplit_once('.').and_then(|(section, _)| self.overrides.get(section)));
        self.errors.push(ConfigError {
            file: self.file.clone(),
            line: if source.is_some() { None } else { self.lines.get(path).copied() },
            key: path.to_owned(),
            seen,
            rule,
            source: source.map(|source| source.source.clone()).unwrap_or_default(),
        });
    }

    /// `value`, if nothing was refused.
    pub(super) fn finish<T>(self, value: T) -> Result<T, ConfigErrors> {
        if self.errors.is_empty() { Ok(value) } else { Err(ConfigErrors::new(self.errors)) }
    }
}

/// Where an unknown key may belong: another kind, a section below, a near name, or what there is.
fn hint(section: &Section, name: &str, kind: Option<&str>, known: &[&str]) -> String {
    let has = |keys: &[Key]| keys.iter().any(|key| key.name == name);
    let kinds: Vec<_> =
        section.kinds.iter().filter(|other| has(other.keys)).map(|other| other.name).collect();
    if let (Some(kind), false) = (kind, kinds.is_empty()) {
        let them = super::table::one_of(&kinds);
        return format!(" of kind = {kind:?}: it belongs to kind = {them}");
    }
    let near = did_you_mean(name, known);
    if !near.is_empty() {
        return near;
    }
    let below = section
        .sections
        .iter()
        .find(|below| has(below.keys) || below.kinds.iter().any(|variant| has(variant.keys)));
    match below {
        Some(below) => format!(": it belongs into [{}]", below.name),
        None => format!("; known here: {}", known.join(", ")),
    }
}

/// `; did you mean "x"?`, or nothing when nothing is near.
pub(super) fn did_you_mean(name: &str, known: &[&str]) -> String {
    // The distance takes time in the product of the lengths; no key is that long.
    let name: String = name.chars().take(NAME_BYTES_MAX).collect();
    let lower = name.to_lowercase();
    let edits = |other: &&&str| strsim::damerau_levenshtein(&lower, other);
    let near = known.iter().min_by_key(edits);
    match near.filter(|near| edits(near) <= EDITS_MAX.max(name.chars().count() / 3)) {
        Some(near) => format!("; did you mean {near:?}?"),
        None => String::new(),
    }
}

pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a number with a fraction",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
    }
}

/// A value on one line, cut where it gets long.
fn shown_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", cut(text)),
        Value::Table(_) => "a section".to_owned(),
        // `1e-60`, not sixty digits.
        Value::Float(value) if value.is_finite() => format!("{value:?}"),
        other => shown(&other.to_string()),
    }
}

/// A key as TOML would write it.
fn shown_key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(bare) { cut(name) } else { format!("{:?}", cut(name)) }
}

/// Text on one line, cut where it gets long.
pub(super) fn shown(text: &str) -> String {
    cut(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn cut(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_CHARACTERS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Lines of all keys down to the keys of sections. Called for text that parses.
fn lines_of(text: &str) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    let Ok(table) = DeTable::parse(text) else { return lines };
    let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |at: usize| breaks.partition_point(|end| *end < at) + 1;
    for (name, value) in table.get_ref() {
        lines.insert(shown_key(name.get_ref()), line(name.span().start));
        if let DeValue::Table(below) = value.get_ref() {
            for (key, _) in below {
                let path = format!("{}.{}", shown_key(name.get_ref()), shown_key(key.get_ref()));
                lines.insert(path, line(key.span().start));
            }
        }
    }
    lines
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}
