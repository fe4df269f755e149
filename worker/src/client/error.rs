//! What a caller of the raw client can get back instead of an answer.

use crate::net::NetError;
use slackline_common::blame::Blame;
use slackline_common::layout::{Dtype, Layout, LayoutError};
use slackline_common::quic::{CertError, CloseCode, QuicError};
use slackline_common::wire::frame::Refusal;

/// What a caller of the raw client can get back instead of an answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The certificate files are not usable.
    #[error(transparent)]
    Credentials(#[from] CertError),
    /// The network or a peer.
    #[error(transparent)]
    Net(NetError),
    /// The job trains a built-in model, which workers do by themselves.
    #[error(
        "job {job:?} trains a built-in model; a raw client needs one with model = \"external\""
    )]
    NotExternal {
        /// The job's name.
        job: String,
    },
    /// The tensors make no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Another client came first with other tensors.
    #[error("this client's tensors differ from those the job was started with: {difference}")]
    LayoutMismatch {
        /// The first difference.
        difference: String,
    },
    /// There are no parameters yet.
    #[error("the parameters have no first values yet: call init first")]
    NotInitialised,
    /// There are parameters already.
    #[error("the parameters have their first values already: init is called once")]
    AlreadyInitialised,
    /// No tensor of that name.
    #[error("there is no tensor {name:?}{}", nearest.as_ref().map_or_else(String::new, |n| format!("; did you mean {n:?}?")))]
    UnknownTensor {
        /// The name.
        name: String,
        /// The most similar name there is.
        nearest: Option<String>,
    },
    /// A tensor twice in one call.
    #[error("tensor {name:?} is named twice in one call: name each once")]
    TwiceNamed {
        /// The name.
        name: String,
    },
    /// Another shape than the tensor has.
    #[error("tensor {name:?} has shape {expected:?}, the caller's array {got:?}")]
    WrongShape {
        /// The name.
        name: String,
        /// The caller's.
        got: Vec<u64>,
        /// The tensor's.
        expected: Vec<u64>,
    },
    /// Another number of values than the tensor has elements.
    #[error("tensor {name:?} has {expected} elements, the caller gives {got} values")]
    WrongLength {
        /// The name.
        name: String,
        /// The caller's.
        got: usize,
        /// The tensor's.
        expected: usize,
    },
    /// Another number format than the tensor was declared with.
    #[error("tensor {name:?} was declared as {expected}, the caller's array is {got}")]
    WrongDtype {
        /// The name.
        name: String,
        /// The caller's.
        got: Dtype,
        /// The tensor's.
        expected: Dtype,
    },
    /// More samples than one push may declare.
    #[error(
        "a push declares {got} samples; at most {} are allowed",
        slackline_common::limits::PUSH_SAMPLES_MAX
    )]
    TooManySamples {
        /// How many.
        got: u32,
    },
    /// The seat belongs to somebody else now.
    #[error("this client's seat was given up or taken over: {sentence}")]
    StaleIncarnation {
        /// The server's words.
        sentence: String,
    },
    /// Somebody kept a call waiting for too long.
    #[error("waited {seconds:.1} s for {what}: {who}")]
    PeerMissing {
        /// What was waited for.
        what: String,
        /// Who owes it, since when.
        who: String,
        /// How long.
        seconds: f64,
    },
    /// The job is over.
    #[error("the job is over: {reason}")]
    JobEnded {
        /// The coordinator's words.
        reason: String,
    },
    /// The job was stopped: what has been pushed counts, and nothing more is wanted.
    #[error("the job was stopped: leave; pushes that were acknowledged are in the model")]
    Stopping,
}

impl From<NetError> for ClientError {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Refused { refusal: Refusal::StaleIncarnation, sentence, .. } => {
                Self::StaleIncarnation { sentence }
            }
            NetError::Quic(error) => match error.as_ref() {
                QuicError::Closed { code: CloseCode::Fenced, reason, .. } => {
                    Self::StaleIncarnation { sentence: reason.clone() }
                }
                _ => Self::Net(NetError::Quic(error)),
            },
            NetError::Refused { refusal: Refusal::NotInitialised, .. } => Self::NotInitialised,
            NetError::Missing { who, seconds, owed, why } => {
                Self::PeerMissing { what: owed, who: format!("{who} is gone ({why})"), seconds }
            }
            other => Self::Net(other),
        }
    }
}

impl ClientError {
    /// Whose move it is. No wildcard arm: a new variant must choose.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Net(error) => error.blame(),
            Self::Credentials(_)
            | Self::NotExternal { .. }
            | Self::Layout(_)
            | Self::LayoutMismatch { .. }
            | Self::NotInitialised
            | Self::AlreadyInitialised
            | Self::UnknownTensor { .. }
            | Self::TwiceNamed { .. }
            | Self::WrongShape { .. }
            | Self::WrongLength { .. }
            | Self::WrongDtype { .. }
            | Self::TooManySamples { .. } => Blame::Config,
            Self::StaleIncarnation { .. }
            | Self::PeerMissing { .. }
            | Self::JobEnded { .. }
            | Self::Stopping => Blame::Network,
        }
    }

    /// A name that is no tensor's, with the one that was probably meant.
    pub(crate) fn unknown(layout: &Layout, name: &str) -> Self {
        let names = layout.tensors().iter().map(|tensor| &tensor.name);
        let nearest = names
            .map(|known| (distance(known, name), known))
            .min()
            .filter(|(distance, known)| *distance <= known.len().max(name.len()) / 2)
            .map(|(_, known)| known.clone());
        Self::UnknownTensor { name: name.to_owned(), nearest }
    }

    /// What differs between two layouts.
    pub(crate) fn mismatch(ours: &Layout, theirs: &Layout) -> Self {
        let pairs = ours.tensors().iter().zip(theirs.tensors());
        let describe = |spec: &slackline_common::layout::TensorSpec| {
            format!("{:?} {:?} {} {:?}", spec.name, spec.shape, spec.dtype, spec.role)
        };
        let unlike = pairs.enumerate().find_map(|(position, (ours, theirs))| {
            let (ours, theirs) = (describe(ours), describe(theirs));
            (ours != theirs)
                .then(|| format!("tensor {position} is {ours} here and {theirs} in the job"))
        });
        let difference = unlike.unwrap_or_else(|| {
            let (ours, theirs) = (ours.tensors().len(), theirs.tensors().len());
            format!("{ours} tensors here and {theirs} in the job")
        });
        Self::LayoutMismatch { difference }
    }
}

/// Levenshtein's edit distance in bytes; names are at most 256 bytes long.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_common::layout::{Init, TensorSpec};

    fn layout(tensors: &[(&str, &[u64])]) -> Layout {
        let spec =
            |(name, shape): &(&str, &[u64])| TensorSpec::parameter(*name, shape, Init::External);
        Layout::new(tensors.iter().map(spec).collect()).unwrap()
    }

    #[test]
    fn a_misspelt_name_is_answered_with_the_nearest() {
        let layout = layout(&[("fc1.weight", &[2]), ("fc1.bias", &[2]), ("fc2.weight", &[2])]);
        let check = |name: &str, text: &str| {
            assert_eq!(ClientError::unknown(&layout, name).to_string(), text);
        };
        check("fc1.wieght", r#"there is no tensor "fc1.wieght"; did you mean "fc1.weight"?"#);
        check("fc1.bia", r#"there is no tensor "fc1.bia"; did you mean "fc1.bias"?"#);
        check("?", r#"there is no tensor "?""#);
    }

    #[test]
    fn the_distance_counts_edits() {
        for (a, b, edits) in [("", "abc", 3), ("kitten", "sitting", 3), ("abc", "abc", 0)] {
            assert_eq!((distance(a, b), distance(b, a)), (edits, edits));
        }
    }

    #[test]
    fn the_first_difference_of_two_layouts_is_named() {
        let check = |a: &[(&str, &[u64])], b: &[(&str, &[u64])], part: &str| {
            let line = ClientError::mismatch(&layout(a), &layout(b)).to_string();
            assert!(line.contains(part), "{line:?} does not say {part:?}");
        };
        check(
            &[("a", &[2]), ("b", &[3])],
            &[("a", &[2]), ("b", &[4])],
            r#"tensor 1 is "b" [3] f32 Parameter here and "b" [4] f32 Parameter in the job"#,
        );
        check(&[("a", &[2])], &[("a", &[2]), ("b", &[4])], "1 tensors here and 2 in the job");
    }
}
