//! Training from the outside: `slackline run` and what it leaves.

mod demo;
mod events;
mod exact;
mod local;
mod models;
mod slow_links;
