//! One value against its rule, and the values of a section that passed.

use super::reader::{did_you_mean, type_of};
use super::table::{FILES_MAX, Kind, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::{Bound, RangeBounds as _};
use toml::Value;

/// The checked values of one section. A value that was refused is absent here: its fault is
/// recorded, so whatever a caller builds from the stand-in is thrown away by `Document::finish`.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// Where the section stands in the file; empty for the file itself.
    pub(super) at: String,
    pub(super) values: BTreeMap<&'static str, Checked>,
    pub(super) given: BTreeSet<&'static str>,
    /// The kind in force.
    pub(super) kind: Option<&'static str>,
}

/// A value of the right type and range.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Checked {
    Flag(bool),
    Integer(u64),
    Number(f64),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<u64>),
    Socket(SocketAddr),
}

impl Values {
    /// Whole path of a key.
    pub(super) fn path(&self, name: &str) -> String {
        join(&self.at, name)
    }

    /// Whether the key is written in the file or overridden, right or wrong.
    pub(super) fn given(&self, name: &str) -> bool {
        self.given.contains(name)
    }

    pub(super) fn integer(&self, name: &str) -> Option<u64> {
        match self.values.get(name) {
            Some(Checked::Integer(value)) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn u64(&self, name: &str) -> u64 {
        self.integer(name).unwrap_or_default()
    }

    /// The tables' ranges fit; a wider one would be a bug that saturates visibly.
    pub(super) fn u32(&self, name: &str) -> u32 {
        u32::try_from(self.u64(name)).unwrap_or(u32::MAX)
    }

    /// See [`Self::u32`].
    pub(super) fn u16(&self, name: &str) -> u16 {
        u16::try_from(self.u64(name)).unwrap_or(u16::MAX)
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        match self.values.get(name) {
            Some(Checked::Number(value)) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn f64(&self, name: &str) -> f64 {
        self.number(name).unwrap_or_default()
    }

    pub(super) fn f32(&self, name: &str) -> f32 {
        single(self.f64(name))
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.values.get(name), Some(Checked::Flag(true)))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.values.get(name) {
            Some(Checked::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn string(&self, name: &str) -> String {
        self.text(name).unwrap_or_default().to_owned()
    }

    pub(super) fn texts(&self, name: &str) -> Option<&[String]> {
        match self.values.get(name) {
            Some(Checked::Texts(texts)) => Some(texts),
            _ => None,
        }
    }

    pub(super) fn sizes(&self, name: &str) -> Vec<u32> {
        match self.values.get(name) {
            Some(Checked::Integers(sizes)) => {
                sizes.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX)).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn socket(&self, name: &str) -> Option<SocketAddr> {
        match self.values.get(name) {
            Some(Checked::Socket(address)) => Some(*address),
            _ => None,
        }
    }
}

/// Path of `name` in the section at `at`.
pub(super) fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// Reads `value` as `kind`.
///
/// # Errors
/// What to append to the kind's rule.
pub(super) fn check(kind: Kind, value: &Value) -> Result<Checked, String> {
    let range = String::new;
    let checked = match (kind, value) {
        (Kind::Flag, Value::Boolean(flag)) => Checked::Flag(*flag),
        (Kind::Integer { min, max }, Value::Integer(value)) => {
            Checked::Integer(integer(*value, min, max).ok_or_else(range)?)
        }
        (Kind::Number { low, high }, Value::Integer(_) | Value::Float(_)) => {
            Checked::Number(number(value, low, high).ok_or_else(range)?)
        }
        (Kind::NonZero, Value::Integer(_) | Value::Float(_)) => {
            let value = number(value, Bound::Unbounded, Bound::Unbounded);
            Checked::Number(value.filter(|value| single(*value) != 0.0).ok_or_else(range)?)
        }
        (Kind::Word { words }, Value::String(word)) => {
            let known = words.contains(&word.as_str());
            known.then(|| Checked::Text(word.clone())).ok_or_else(|| did_you_mean(word, words))?
        }
        (Kind::Text, Value::String(text)) if is_text(text) => Checked::Text(text.clone()),
        (Kind::Name, Value::String(name)) if is_name(name) => Checked::Text(name.clone()),
        (Kind::HostPort, Value::String(text)) if is_host_port(text) => Checked::Text(text.clone()),
        (Kind::Texts, Value::String(text)) if is_text(text) => Checked::Texts(vec![text.clone()]),
        (Kind::Texts, Value::Array(list)) => Checked::Texts(texts(list).ok_or_else(range)?),
        (Kind::Integers { count, min, max }, Value::Array(list)) => {
            let fits = (count.0..=count.1).contains(&list.len());
            let list = list.iter().map(|one| integer(one.as_integer()?, min, max));
            let list = list.collect::<Option<Vec<_>>>().filter(|_| fits);
            Checked::Integers(list.ok_or_else(range)?)
        }
        (Kind::Socket, Value::String(text)) => Checked::Socket(text.parse().map_err(|_| range())?),
        (Kind::Text | Kind::Name | Kind::HostPort | Kind::Texts, Value::String(_)) => {
            return Err(range());
        }
        (_, other) => return Err(format!(", not {}", type_of(other))),
    };
    Ok(checked)
}

fn integer(value: i64, min: u64, max: u64) -> Option<u64> {
    u64::try_from(value).ok().filter(|value| (min..=max).contains(value))
}

fn number(value: &Value, low: Bound<f64>, high: Bound<f64>) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a rate of 2^53 + 1 is not meant exactly")]
    let value = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))?;
    let rounded = f64::from(single(value));
    let inside = (low, high).contains(&value) && (low, high).contains(&rounded);
    (inside && rounded.is_finite()).then_some(value)
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
fn single(value: f64) -> f32 {
    value as f32
}

fn is_text(text: &str) -> bool {
    (1..=TEXT_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !name.contains("..")
}

fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let port_is_right = port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    let host_is_right = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            (1..=253).contains(&host.len())
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        }
    };
    port_is_right && host_is_right
}

fn texts(list: &[Value]) -> Option<Vec<String>> {
    if !(1..=FILES_MAX).contains(&list.len()) {
        return None;
    }
    list.iter().map(|one| one.as_str().filter(|text| is_text(text)).map(str::to_owned)).collect()
}
