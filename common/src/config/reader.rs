//! Walks a TOML table by the tables of [`super::table`] and collects every fault of a file.

use super::environment::Override;
use super::table::{Fallback, Key, Kind, NAME_BYTES_MAX, Section, one_of};
use super::values::{Values, check, join};
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
/// Most names in a path whose line is kept; a deeper one has no key.
const LINE_NAMES_MAX: usize = 4;

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

/// What a file says where a section may repeat.
#[derive(Debug)]
pub(super) enum Repeated {
    /// Nothing.
    Absent,
    /// What is neither.
    Refused,
    /// A text in place of the tables, not checked yet.
    Text(String),
    /// The tables, in order.
    Tables(Vec<Values>),
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
        self.lookup(section.name).is_some()
    }

    /// What stands at a path; a number leads into a list.
    fn lookup(&self, path: &str) -> Option<&Value> {
        let mut names = path.split('.');
        let first = self.table.get(names.next()?)?;
        names.try_fold(first, |at, name| match at {
            Value::Array(list) => list.get(name.parse::<usize>().ok()?),
            at => at.get(name),
        })
    }

    /// Reads one section: every key of its table is checked, every other key is refused.
    pub(super) fn section(&mut self, section: &'static Section) -> Values {
        if section.name.is_empty() {
            let table = self.table.clone();
            return self.table(section, "", &table);
        }
        match self.lookup(section.name).cloned() {
            Some(Value::Table(table)) => self.table(section, section.name, &table),
            Some(other) => {
                let rule = format!("must be a section, not {}", type_of(&other));
                self.push(section.name, shown_value(&other), rule);
                Values::default()
            }
            None if section.required => {
                let rule = format!("missing section {}: {}", section.heading(), section.doc);
                self.push(section.name, String::new(), rule);
                Values::default()
            }
            None => self.table(section, section.name, &Table::new()),
        }
    }

    /// Reads a section that may repeat; each table as [`section`](Self::section) reads one.
    pub(super) fn repeated(&mut self, section: &'static Section) -> Repeated {
        let repeats = section.repeats.expect("a section that repeats says how");
        let written = match self.lookup(section.name).cloned() {
            None => return Repeated::Absent,
            Some(Value::String(text)) => return Repeated::Text(text),
            Some(written) => written,
        };
        let note = match &written {
            Value::Array(list) if (1..=repeats.most).contains(&list.len()) => {
                let tables = list.iter().enumerate();
                let read = |(index, one): (usize, &Value)| {
                    let path = join(section.name, &index.to_string());
                    if let Value::Table(table) = one {
                        return self.table(section, &path, table);
                    }
                    let rule = format!("must be a table, not {}", type_of(one));
                    self.push(&path, shown_value(one), rule);
                    Values::default()
                };
                return Repeated::Tables(tables.map(read).collect());
            }
            Value::Array(list) => format!("; there are {}", list.len()),
            other => format!(", not {}", type_of(other)),
        };
        // A list of tables would be shown as far as it fits, which says nothing.
        let seen = if written.is_array() { String::new() } else { shown_value(&written) };
        let rule = format!(
            "must be {}, or 1 to {} tables {}{note}",
            repeats.text,
            repeats.most,
            section.heading()
        );
        self.push(section.name, seen, rule);
        Repeated::Refused
    }

    /// Reads a table that stands at `path` as a section.
    pub(super) fn table(&mut self, section: &'static Section, path: &str, table: &Table) -> Values {
        let mut values = Values { at: path.to_owned(), ..Values::default() };
        let kind = self.kind_of(section, path, table);
        values.kind = kind.flatten();
        let variant = values.kind.and_then(|name| section.variant(name));
        for key in section.keys.iter().chain(variant.map_or(&[][..], |variant| variant.keys)) {
            self.value(key, table, &mut values);
        }
        // When the kind itself is refused, nobody knows which keys are unknown.
        if kind.is_some() {
            self.refuse_unknown(section, &values, table);
        }
        values
    }

    /// `None`: the kind was refused. `Some(None)`: the section has no kinds.
    fn kind_of(
        &mut self,
        section: &Section,
        path: &str,
        table: &Table,
    ) -> Option<Option<&'static str>> {
        if section.kinds.is_empty() {
            return Some(None);
        }
        let names: Vec<_> = section.kinds.iter().map(|variant| variant.name).collect();
        let path = join(path, section.selector);
        let rule = format!("must be {}", one_of(&names));
        match table.get(section.selector) {
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

    fn value(&mut self, key: &'static Key, table: &Table, to: &mut Values) {
        let path = to.path(key.name);
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
            Err(note) => {
                let rule = format!("must be {}{note}", key.kind.rule());
                self.push(&path, shown_value(&value), rule);
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

    fn refuse_unknown(&mut self, section: &Section, values: &Values, table: &Table) {
        let variant = values.kind.and_then(|name| section.variant(name));
        let keys = section.keys.iter().chain(variant.map_or(&[][..], |variant| variant.keys));
        let mut known: Vec<&str> = keys.map(|key| key.name).collect();
        known.extend(section.sections.iter().map(|below| below.last_name()));
        if !section.kinds.is_empty() {
            known.push(section.selector);
        }
        for (name, _) in table.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            let rule = format!("unknown key{}", hint(section, name, values.kind, &known));
            self.push(&values.path(&shown_key(name)), String::new(), rule);
        }
    }

    /// Records a fault that concerns the key at `path`, with the value seen there.
    pub(super) fn refuse(&mut self, path: &str, rule: impl Into<String>) {
        let seen = self.lookup(path).filter(|value| !value.is_table());
        let seen = seen.map(shown_value).unwrap_or_default();
        self.push(path, seen, rule.into());
    }

    fn push(&mut self, path: &str, seen: String, rule: String) {
        // The key itself and the sections around it: any of them may be overridden, and a key that
        // is missing has the line of its section.
        let around =
            || std::iter::successors(Some(path), |path| path.rsplit_once('.').map(|(at, _)| at));
        let source = around().find_map(|path| self.overrides.get(path));
        let line = around().find_map(|path| self.lines.get(path).copied());
        self.errors.push(ConfigError {
            file: self.file.clone(),
            line: if source.is_some() { None } else { line },
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

/// Where an unknown key may belong: another kind, a near name, a section below, or what there is.
fn hint(section: &Section, name: &str, kind: Option<&str>, known: &[&str]) -> String {
    let has = |keys: &[Key]| keys.iter().any(|key| key.name == name);
    let kinds: Vec<_> =
        section.kinds.iter().filter(|other| has(other.keys)).map(|other| other.name).collect();
    if let (Some(kind), false) = (kind, kinds.is_empty()) {
        let (selector, them) = (section.selector, one_of(&kinds));
        return format!(" of {selector} = {kind:?}: it belongs to {selector} = {them}");
    }
    let near = did_you_mean(name, known);
    if !near.is_empty() {
        return near;
    }
    match section.below_with_key(name) {
        Some(below) => format!(": it belongs into {}", below.heading()),
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

/// Lines of all keys by path. Called for text that parses.
fn lines_of(text: &str) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    if let Ok(table) = DeTable::parse(text) {
        let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |at: usize| breaks.partition_point(|end| *end < at) + 1;
        add_lines(table.get_ref(), "", LINE_NAMES_MAX, &line, &mut lines);
    }
    lines
}

fn add_lines(
    table: &DeTable<'_>,
    at: &str,
    names: usize,
    line: &dyn Fn(usize) -> usize,
    lines: &mut BTreeMap<String, usize>,
) {
    let Some(names) = names.checked_sub(1) else { return };
    for (name, value) in table {
        let path = join(at, &shown_key(name.get_ref()));
        match value.get_ref() {
            DeValue::Table(below) => add_lines(below, &path, names, line, lines),
            DeValue::Array(list) => {
                for (index, one) in list.iter().enumerate() {
                    let DeValue::Table(below) = one.get_ref() else { continue };
                    let path = join(&path, &index.to_string());
                    lines.insert(path.clone(), line(one.span().start));
                    add_lines(below, &path, names, line, lines);
                }
            }
            _ => {}
        }
        lines.insert(path, line(name.span().start));
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}
