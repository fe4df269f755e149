//! Who a process is. A role is proven by its certificate and checked for every connection.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a process may do in a job.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Keeps membership, the job and the leases.
    Coordinator,
    /// Holds shards.
    Server,
    /// Computes gradients.
    Worker,
    /// A person, or a program that speaks for one.
    Operator,
}

impl Role {
    /// Every role, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::Coordinator, Self::Server, Self::Worker, Self::Operator];

    /// The lower-case word, as it stands in files and certificates.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Server => "server",
            Self::Worker => "worker",
            Self::Operator => "operator",
        }
    }

    /// The DNS name a certificate of this role carries: `<role>.slackline`.
    pub const fn dns_name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator.slackline",
            Self::Server => "server.slackline",
            Self::Worker => "worker.slackline",
            Self::Operator => "operator.slackline",
        }
    }

    /// The role a certificate's DNS name stands for, if it is one of ours.
    pub fn from_dns_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.dns_name() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that is no role.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("\"{got}\" is not a role: coordinator, server, worker or operator")]
pub struct RoleError {
    /// The word that was read.
    pub got: String,
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(word: &str) -> Result<Self, RoleError> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == word)
            .ok_or_else(|| RoleError { got: word.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_survives_its_word_and_its_dns_name() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
            assert_eq!(Role::from_dns_name(role.dns_name()), Some(role));
            assert_eq!(role.dns_name(), format!("{role}.slackline"));
        }
    }

    #[test]
    fn another_word_is_refused_with_the_words_there_are() {
        let line = "Worker".parse::<Role>().unwrap_err().to_string();
        assert_eq!(line, "\"Worker\" is not a role: coordinator, server, worker or operator");
        assert_eq!(Role::from_dns_name("worker.slackline.evil"), None);
    }
}
