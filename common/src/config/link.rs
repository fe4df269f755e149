//! How a process sends: the `[link]` section of every node file.

use super::reader::Document;
use super::table::Fallback::{Absent, Is};
use super::table::{Kind, Section, key};
use crate::limits::{EGRESS_MEGABITS_MAX, EGRESS_MEGABITS_MIN};
use std::ops::Bound::Included;

/// What decides how much is on its way at once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Congestion {
    /// RFC 9438: fills queues, takes every loss for a full one.
    Cubic,
    /// quinn's BBR, which calls itself experimental.
    Bbr,
    /// Ours: follows the rate that is delivered, whatever is lost on the way up to a tenth.
    #[default]
    Rate,
}

/// How a process sends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// What decides how much is on its way at once.
    pub congestion: Congestion,
    /// Most 10⁶ bits per second that the process sends, over all its connections, IP and UDP headers
    /// included.
    pub egress_megabits: Option<f64>,
}

pub(super) static LINK: Section = Section::plain(
    "link",
    "How this process sends.",
    false,
    &[
        key(
            "congestion",
            Kind::word(&["rate", "cubic", "bbr"]),
            Is("\"rate\""),
            "what decides how much is on its way: the rate delivered, whatever is lost; CUBIC, which \
             slows down with every loss; quinn's experimental BBR",
        ),
        key(
            "egress_mbit",
            Kind::Number {
                low: Included(EGRESS_MEGABITS_MIN),
                high: Included(EGRESS_MEGABITS_MAX),
            },
            Absent,
            "most Mbit/s the process sends, over all connections, IP and UDP headers included; absent \
             means no cap",
        ),
    ],
);

pub(super) fn link(document: &mut Document) -> Link {
    let values = document.section(&LINK);
    Link {
        congestion: match values.text("congestion") {
            Some("cubic") => Congestion::Cubic,
            Some("bbr") => Congestion::Bbr,
            _ => Congestion::Rate,
        },
        egress_megabits: values.number("egress_mbit"),
    }
}
