//! One table per section: a key's name, type, range, default and meaning stand side by side, and
//! both the reader and the printed reference are made from them, so they cannot disagree.

use std::fmt::Write as _;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

/// Longest text value in bytes: paths, addresses, names.
pub(super) const TEXT_BYTES_MAX: usize = 4096;
/// Longest name of a run or of a worker: it becomes a folder.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// Most files of one part of the data.
pub(super) const FILES_MAX: usize = 1024;

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) fallback: Fallback,
    pub(super) doc: &'static str,
}

/// Shorthand that keeps a table one entry per line or two.
pub(super) const fn key(
    name: &'static str,
    kind: Kind,
    fallback: Fallback,
    doc: &'static str,
) -> Key {
    Key { name, kind, fallback, doc }
}

/// What holds when a key is not written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fallback {
    /// The file is refused.
    Required,
    /// Nothing; the doc says what that means.
    Absent,
    /// This TOML value, read by the same code as a written one.
    Is(&'static str),
}

/// Type and range of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number, both ends included.
    Integer { min: u64, max: u64 },
    /// A finite number; also checked after rounding to `f32`, so that an open end stays open.
    Number { low: Bound<f64>, high: Bound<f64> },
    /// A finite number other than 0, in `f32` too.
    NonZero,
    /// One of a few words.
    Word { words: &'static [&'static str] },
    /// Text without control characters.
    Text,
    /// What may become a folder's name.
    Name,
    /// One text or a list of texts.
    Texts,
    /// A list of whole numbers.
    Integers { count: (usize, usize), min: u64, max: u64 },
    /// `ip:port` to listen on.
    Socket,
    /// `host:port` to connect to.
    HostPort,
}

impl Kind {
    /// Above 0.
    pub(super) const POSITIVE: Self = Self::Number { low: Excluded(0.0), high: Unbounded };
    /// 0 and above.
    pub(super) const NOT_NEGATIVE: Self = Self::Number { low: Included(0.0), high: Unbounded };
    /// Any finite number.
    pub(super) const FINITE: Self = Self::Number { low: Unbounded, high: Unbounded };
    /// `[0, 1)`.
    pub(super) const DECAY: Self = Self::Number { low: Included(0.0), high: Excluded(1.0) };
    /// `(0, 1]`.
    pub(super) const SHARE: Self = Self::Number { low: Excluded(0.0), high: Included(1.0) };
    /// `[0, 1]`.
    pub(super) const FRACTION: Self = Self::Number { low: Included(0.0), high: Included(1.0) };

    /// A number with both ends included.
    pub(super) const fn between(low: f64, high: f64) -> Self {
        Self::Number { low: Included(low), high: Included(high) }
    }

    /// One of these words.
    pub(super) const fn word(words: &'static [&'static str]) -> Self {
        Self::Word { words }
    }

    /// What is allowed, as the end of a sentence that starts with "must be".
    pub(super) fn rule(&self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Integer { min, max } => format!("an integer in {min}..={max}"),
            Self::Number { low, high } => number_rule(*low, *high),
            Self::NonZero => "a finite number other than 0".to_owned(),
            Self::Word { words } => one_of(words),
            Self::Text => format!("text of 1 to {TEXT_BYTES_MAX} bytes without control characters"),
            Self::Name => format!(
                "1 to {NAME_BYTES_MAX} letters, digits, \"-\", \"_\" and \".\", starting with a \
                 letter or digit and without \"..\" (it names a folder)"
            ),
            Self::Texts => {
                format!("a text or a list of 1 to {FILES_MAX} texts, none of them empty")
            }
            Self::Integers { count: (least, most), min, max } if least == most => {
                format!("a list of {least} integers in {min}..={max}")
            }
            Self::Integers { count: (least, most), min, max } => {
                format!("a list of {least} to {most} integers in {min}..={max}")
            }
            Self::Socket => "an address to listen on, ip:port, like \"127.0.0.1:7700\"".to_owned(),
            Self::HostPort => {
                "host:port with a port in 1..=65535, like \"10.0.0.7:7700\"".to_owned()
            }
        }
    }
}

fn number_rule(low: Bound<f64>, high: Bound<f64>) -> String {
    let low = match low {
        Included(low) => Some(format!("at least {low}")),
        Excluded(low) => Some(format!("above {low}")),
        Unbounded => None,
    };
    let high = match high {
        Included(high) => Some(format!("at most {high}")),
        Excluded(high) => Some(format!("below {high}")),
        Unbounded => None,
    };
    match (low, high) {
        (Some(low), Some(high)) => format!("a number {low} and {high}"),
        (Some(end), None) | (None, Some(end)) => format!("a finite number {end}"),
        (None, None) => "a finite number".to_owned(),
    }
}

/// `"a", "b" or "c"`.
pub(super) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => "nothing".to_owned(),
    }
}

/// A section: `[name]`, `[[name]]`, or the whole file when the name is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    /// Its whole path, dots between sections.
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
    /// Whether the file is refused without it.
    pub(super) required: bool,
    /// Keys it always has.
    pub(super) keys: &'static [Key],
    /// The key whose value decides which further keys it has.
    pub(super) selector: &'static str,
    /// The values of the selector; none when all keys are fixed.
    pub(super) kinds: &'static [Variant],
    /// The kind when none is written.
    pub(super) kind_fallback: Option<&'static str>,
    /// Sections below it.
    pub(super) sections: &'static [&'static Self],
    /// Present in a section that may stand in a file more than once.
    pub(super) repeats: Option<Repeats>,
}

/// How a section repeats: `[[name]]` for each, or one text in place of them all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeats {
    /// Most of them.
    pub(super) most: usize,
    /// What the text may be, as the end of a sentence that starts with "must be".
    pub(super) text: &'static str,
}

/// One kind of a section and the keys that only it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
    pub(super) keys: &'static [Key],
}

impl Section {
    /// A section with fixed keys.
    pub(super) const fn plain(
        name: &'static str,
        doc: &'static str,
        required: bool,
        keys: &'static [Key],
    ) -> Self {
        Self {
            name,
            doc,
            required,
            keys,
            selector: "kind",
            kinds: &[],
            kind_fallback: None,
            sections: &[],
            repeats: None,
        }
    }

    /// A whole file.
    pub(super) const fn file(
        doc: &'static str,
        keys: &'static [Key],
        sections: &'static [&'static Self],
    ) -> Self {
        Self { sections, ..Self::plain("", doc, true, keys) }
    }

    /// The kind called `name`.
    pub(super) fn variant(&self, name: &str) -> Option<&'static Variant> {
        self.kinds.iter().find(|variant| variant.name == name)
    }

    /// Its name inside the section above.
    pub(super) fn last_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// Its heading in a file.
    pub(super) fn heading(&self) -> String {
        if self.repeats.is_some() {
            format!("[[{}]]", self.name)
        } else {
            format!("[{}]", self.name)
        }
    }

    /// Whether it has the key, of any kind.
    pub(super) fn has_key(&self, name: &str) -> bool {
        let in_kinds = self.kinds.iter().flat_map(|variant| variant.keys);
        self.keys.iter().chain(in_kinds).any(|key| key.name == name)
    }

    /// The first section below it, at any depth, that has the key.
    pub(super) fn below_with_key(&self, name: &str) -> Option<&'static Self> {
        self.sections.iter().find_map(|below| {
            if below.has_key(name) { Some(*below) } else { below.below_with_key(name) }
        })
    }

    /// Appends the reference of this section and those below it, as Markdown.
    pub(super) fn describe(&self, out: &mut String) {
        let need = if self.required { "" } else { " Optional." };
        if self.name.is_empty() {
            push_line(out, &format!("{}\n", self.doc));
        } else {
            push_line(out, &format!("\n### `{}`\n\n{}{need}\n", self.heading(), self.doc));
        }
        if let Some(repeats) = self.repeats {
            let line = format!(
                "At most {} of them, or `{} = ` one text in their place: {}.\n",
                repeats.most, self.name, repeats.text
            );
            push_line(out, &line);
        }
        push_line(out, "| key | must be | default | meaning |\n| --- | --- | --- | --- |");
        if !self.kinds.is_empty() {
            let names: Vec<_> = self.kinds.iter().map(|variant| variant.name).collect();
            let fallback = self
                .kind_fallback
                .map_or_else(|| "required".to_owned(), |kind| format!("`{kind:?}`"));
            push_line(
                out,
                &format!(
                    "| `{}` | {} | {fallback} | decides the further keys |",
                    self.selector,
                    one_of(&names)
                ),
            );
        }
        self.keys.iter().for_each(|key| key.describe(out));
        for variant in self.kinds {
            let row =
                format!("| `{} = {:?}`: | | | {} |", self.selector, variant.name, variant.doc);
            push_line(out, &row);
            variant.keys.iter().for_each(|key| key.describe(out));
        }
        self.sections.iter().for_each(|section| section.describe(out));
    }
}

impl Key {
    fn describe(&self, out: &mut String) {
        let fallback = match self.fallback {
            Fallback::Required => "required".to_owned(),
            Fallback::Absent => "none".to_owned(),
            Fallback::Is(value) => format!("`{value}`"),
        };
        let row = format!("| `{}` | {} | {fallback} | {} |", self.name, self.kind.rule(), self.doc);
        push_line(out, &row);
    }
}

fn push_line(out: &mut String, line: &str) {
    writeln!(out, "{line}").expect("a String grows");
}
