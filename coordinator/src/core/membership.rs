//! Who is there: workers and servers, when each was last heard, and which seat each insists on.
//!
//! Members outlive jobs. A seat or a server number belongs to a job and is kept there; here is only
//! what a member says of itself.

use super::time::Millis;
use slackline_common::ids::SeatId;
use slackline_common::limits::{CONNECTIONS_MAX, SHARDS_PER_SERVER_MAX};
use slackline_common::wire::control::{ServerReport, WorkerReport};
use std::collections::BTreeMap;
use std::fmt;

/// One connection of one member, numbered in the order of arrival.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MemberId(pub u64);

/// Longest name or address a member may give itself, in bytes; a longer one is cut.
const WORDS_BYTES_MAX: usize = 128;

/// What is the same for every member.
#[derive(Clone, Debug)]
pub struct Card {
    /// What people call it.
    pub name: String,
    /// Its address as the coordinator sees it.
    pub address: String,
    /// When it came.
    pub joined: Millis,
    /// When it was last heard.
    pub heard: Millis,
}

/// `NAME at ADDRESS`.
impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}

/// A worker or raw client.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Who it is.
    pub card: Card,
    /// The seat it insists on.
    pub wanted: Option<SeatId>,
    /// Its last report.
    pub report: WorkerReport,
}

/// A server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Who it is.
    pub card: Card,
    /// Where workers reach it.
    pub advertise: String,
    /// Shards it offers.
    pub shards: u16,
    /// Its last report.
    pub report: ServerReport,
}

/// Everybody.
#[derive(Clone, Debug, Default)]
pub struct Members {
    workers: BTreeMap<MemberId, Worker>,
    servers: BTreeMap<MemberId, Server>,
}

/// A card from words a peer chose: one line, no control characters, of bounded length.
pub fn card(name: &str, address: &str, now: Millis) -> Card {
    let words = |text: &str| {
        let clean = text.chars().map(|c| if c.is_control() { '?' } else { c });
        let mut kept = String::new();
        for c in clean {
            if kept.len() + c.len_utf8() > WORDS_BYTES_MAX {
                break;
            }
            kept.push(c);
        }
        if kept.is_empty() { "(no name)".to_owned() } else { kept }
    };
    Card { name: words(name), address: words(address), joined: now, heard: now }
}

impl Members {
    /// Takes a worker in.
    ///
    /// # Errors
    /// The sentence it is refused with: the seat it insists on is another's.
    pub fn add_worker(
        &mut self,
        id: MemberId,
        card: Card,
        wanted: Option<SeatId>,
        clock: impl Fn(Millis) -> String,
    ) -> Result<(), String> {
        self.check_room()?;
        let holder = self.workers.values().find(|w| wanted.is_some() && w.wanted == wanted);
        if let (Some(seat), Some(holder)) = (wanted, holder) {
            return Err(seat_is_held(seat, &holder.card, &clock(holder.card.joined)));
        }
        self.workers.insert(id, Worker { card, wanted, report: WorkerReport::default() });
        Ok(())
    }

    /// Takes a server in.
    ///
    /// # Errors
    /// The sentence it is refused with: its address is another's or is no `host:port`, or it offers
    /// no shard or too many.
    pub fn add_server(
        &mut self,
        id: MemberId,
        card: Card,
        advertise: String,
        shards: u16,
        clock: impl Fn(Millis) -> String,
    ) -> Result<(), String> {
        self.check_room()?;
        if !(1..=SHARDS_PER_SERVER_MAX).contains(&usize::from(shards)) {
            return Err(format!(
                "the server offers {shards} shards; 1 to {SHARDS_PER_SERVER_MAX} are allowed"
            ));
        }
        let port = advertise.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) || advertise.len() > WORDS_BYTES_MAX {
            return Err(format!(
                "the server advertises {:?}, which is no host:port that workers could reach",
                advertise.chars().take(WORDS_BYTES_MAX).collect::<String>()
            ));
        }
        if let Some(other) = self.servers.values().find(|server| server.advertise == advertise) {
            return Err(format!(
                "{advertise} is already advertised by {} since {}: give each server an address of \
                 its own, or stop the other",
                other.card,
                clock(other.card.joined)
            ));
        }
        let report = ServerReport::default();
        self.servers.insert(id, Server { card, advertise, shards, report });
        Ok(())
    }

    /// Connections are bounded already; this bounds what a hostile peer could make us keep.
    fn check_room(&self) -> Result<(), String> {
        match self.workers.len() + self.servers.len() {
            members if members < CONNECTIONS_MAX => Ok(()),
            members => Err(format!("there are {members} members; no more are taken")),
        }
    }

    /// Forgets a member. Says whether it was one.
    pub fn remove(&mut self, id: MemberId) -> bool {
        self.workers.remove(&id).is_some() || self.servers.remove(&id).is_some()
    }

    /// Notes that a member was heard.
    pub fn heard(&mut self, id: MemberId, now: Millis) {
        let worker = self.workers.get_mut(&id).map(|worker| &mut worker.card);
        let server = self.servers.get_mut(&id).map(|server| &mut server.card);
        if let Some(card) = worker.or(server) {
            card.heard = now;
        }
    }

    /// Notes that everybody may have been heard.
    pub fn all_heard(&mut self, now: Millis) {
        self.workers.values_mut().for_each(|worker| worker.card.heard = now);
        self.servers.values_mut().for_each(|server| server.card.heard = now);
    }

    /// The members that have been silent for longer than the lease.
    pub fn silent(&self, now: Millis, lease: Millis) -> Vec<MemberId> {
        self.cards().filter(|(_, card)| now.since(card.heard) > lease).map(|(id, _)| id).collect()
    }

    /// Everybody's card, workers first.
    pub fn cards(&self) -> impl Iterator<Item = (MemberId, &Card)> {
        let workers = self.workers.iter().map(|(id, worker)| (*id, &worker.card));
        workers.chain(self.servers.iter().map(|(id, server)| (*id, &server.card)))
    }

    /// The workers in the order of arrival.
    pub const fn workers(&self) -> &BTreeMap<MemberId, Worker> {
        &self.workers
    }

    /// The servers in the order of arrival.
    pub const fn servers(&self) -> &BTreeMap<MemberId, Server> {
        &self.servers
    }

    /// A worker, to note its report.
    pub fn worker_mut(&mut self, id: MemberId) -> Option<&mut Worker> {
        self.workers.get_mut(&id)
    }

    /// A server, to note its report.
    pub fn server_mut(&mut self, id: MemberId) -> Option<&mut Server> {
        self.servers.get_mut(&id)
    }
}

/// The sentence for a seat that is taken.
pub fn seat_is_held(seat: SeatId, holder: &Card, since: &str) -> String {
    format!("{seat} is held by {holder} since {since}: choose another seat or stop it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(at: Millis) -> String {
        format!("12:00:0{} UTC", at.0 / 1000)
    }

    #[test]
    fn a_seat_has_one_holder_and_the_second_is_told_who() {
        let mut members = Members::default();
        let mut join = |id, name, seat: Option<u16>| {
            members.add_worker(
                MemberId(id),
                card(name, "10.0.0.7:1", Millis(3000)),
                seat.map(SeatId),
                clock,
            )
        };
        assert_eq!(join(1, "anna", Some(3)), Ok(()));
        assert_eq!(join(2, "bert", None), Ok(()));
        assert_eq!(join(3, "carl", None), Ok(()));
        assert_eq!(
            join(4, "dora", Some(3)).unwrap_err(),
            "seat 3 is held by anna at 10.0.0.7:1 since 12:00:03 UTC: choose another seat or stop it"
        );
    }

    #[test]
    fn a_server_is_refused_for_an_address_that_is_taken_or_none() {
        let mut members = Members::default();
        let mut join = |id, advertise: &str, shards| {
            let card = card("box", "10.0.0.7:1", Millis(0));
            members.add_server(MemberId(id), card, advertise.to_owned(), shards, clock)
        };
        assert_eq!(join(1, "10.0.0.7:7002", 1), Ok(()));
        assert_eq!(
            join(2, "10.0.0.7:7002", 1).unwrap_err(),
            "10.0.0.7:7002 is already advertised by box at 10.0.0.7:1 since 12:00:00 UTC: give each \
             server an address of its own, or stop the other"
        );
        assert!(join(3, "10.0.0.7", 1).unwrap_err().contains("no host:port"));
        assert!(join(3, "10.0.0.7:0", 1).unwrap_err().contains("no host:port"));
        assert!(join(3, "10.0.0.8:7002", 0).unwrap_err().contains("0 shards"));
        assert!(join(3, "10.0.0.8:7002", 17).unwrap_err().contains("1 to 16"));
    }

    #[test]
    fn only_members_silent_for_longer_than_the_lease_are_gone() {
        let mut members = Members::default();
        for id in [1, 2] {
            let card = card("w", "a", Millis(0));
            members.add_worker(MemberId(id), card, None, clock).unwrap();
        }
        members.heard(MemberId(2), Millis(4000));
        assert_eq!(members.silent(Millis(5000), Millis(5000)), []);
        assert_eq!(members.silent(Millis(5001), Millis(5000)), [MemberId(1)]);
    }

    #[test]
    fn what_a_member_calls_itself_is_one_line_of_bounded_length() {
        let card = card(&format!("a\n\u{1b}[31m{}", "ö".repeat(500)), "", Millis(0));
        assert!(card.name.starts_with("a??[31mö") && card.name.len() <= WORDS_BYTES_MAX);
        assert_eq!(card.address, "(no name)");
    }
}
