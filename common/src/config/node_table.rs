//! The keys of `coordinator.toml`, `server.toml` and `worker.toml`.

use super::link::LINK;
use super::table::Fallback::{Absent, Is, Required};
use super::table::{Key, Kind, Section, key};
use crate::limits::{SEATS_MAX, SHARDS_PER_SERVER_MAX};
use std::ops::Bound::{Included, Unbounded};

/// A day: whoever waits longer has forgotten.
const PATIENCE: Kind = Kind::between(0.1, 86_400.0);
const COORDINATOR_GRACE: Key = key(
    "coordinator_grace_seconds",
    PATIENCE,
    Is("30.0"),
    "seconds without the coordinator before the process ends",
);
const CONNECT: Key =
    key("coordinator", Kind::HostPort, Is("\"127.0.0.1:7700\""), "where the coordinator listens");
/// 1200 bytes is what QUIC asks of every path (RFC 9000, section 14); quinn never sends with a
/// first MTU above its first window, 14,720 bytes, and jumbo frames end at 9,000.
const MTU: Key = key(
    "mtu",
    Kind::Integer { min: 1200, max: 9000 },
    Is("1452"),
    "largest UDP payload in bytes that every path is known to carry; 6500 on loopback or jumbo \
     frames",
);

pub(super) static COORDINATOR: Section = Section::file(
    "`coordinator.toml`: membership, leases and the job.",
    &[
        key(
            "listen",
            Kind::Socket,
            Is("\"127.0.0.1:7700\""),
            "where members and the operator connect",
        ),
        key("run_dir", Kind::Text, Is("\"runs\""), "folder that gets one folder per run"),
        key(
            "lease_seconds",
            Kind::between(0.5, 600.0),
            Is("5.0"),
            "silence after which a member is lost",
        ),
        key(
            "start_timeout_seconds",
            PATIENCE,
            Is("60.0"),
            "how long a job waits for its members before it says, and says again, who is missing",
        ),
        key(
            "after_job",
            Kind::word(&["exit", "wait"]),
            Is("\"exit\""),
            "end the cluster with the job, or wait for the next",
        ),
        MTU,
    ],
    &[&CERTIFICATES, &LINK, &LOG],
);

pub(super) static SERVER: Section = Section::file(
    "`server.toml`: a house of parameters.",
    &[
        key(
            "listen",
            Kind::Socket,
            Is("\"127.0.0.1:0\""),
            "where workers connect; port 0 lets the system choose",
        ),
        key(
            "advertise",
            Kind::HostPort,
            Absent,
            "what workers are told instead of `listen`; needed when that is every address",
        ),
        CONNECT,
        key(
            "shards",
            Kind::Integer { min: 1, max: SHARDS_PER_SERVER_MAX as u64 },
            Is("1"),
            "shards, each with a thread of its own",
        ),
        COORDINATOR_GRACE,
        MTU,
    ],
    &[&CERTIFICATES, &LINK, &LOG],
);

pub(super) static WORKER: Section = Section::file(
    "`worker.toml`: a house of gradients.",
    &[
        CONNECT,
        key(
            "seat",
            Kind::Integer { min: 0, max: SEATS_MAX as u64 - 1 },
            Absent,
            "the seat it asks for; absent takes any that is free",
        ),
        key("name", Kind::Name, Absent, "its name in logs; absent takes the seat's"),
        key("data_dir", Kind::Text, Is("\".\""), "where relative data paths of a job start"),
        COORDINATOR_GRACE,
        key(
            "server_grace_seconds",
            PATIENCE,
            Is("10.0"),
            "seconds without one of the servers before the process ends",
        ),
        key(
            "threads",
            Kind::Integer { min: 1, max: 256 },
            Is("1"),
            "threads of the linear algebra; more workers beat more threads",
        ),
        key(
            "slowdown",
            Kind::Number { low: Included(1.0), high: Unbounded },
            Absent,
            "for experiments: a step takes so many times as long",
        ),
        MTU,
    ],
    &[&CERTIFICATES, &LINK, &LOG],
);

pub(super) static CERTIFICATES: Section = Section::plain(
    "certificates",
    "PEM files that say who this process is; relative paths start at the folder of this file.",
    true,
    &[
        key("ca", Kind::Text, Required, "the cluster's own authority"),
        key("certificate", Kind::Text, Required, "this process's certificate; its role is in it"),
        key("key", Kind::Text, Required, "the certificate's private key"),
    ],
);

pub(super) static LOG: Section = Section::plain(
    "log",
    "What is logged.",
    false,
    &[
        key(
            "level",
            Kind::word(&["error", "warn", "info", "debug", "trace"]),
            Is("\"info\""),
            "lowest level that is written",
        ),
        key("format", Kind::word(&["text", "json"]), Is("\"text\""), "for people or for machines"),
    ],
);
