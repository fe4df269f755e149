//! What a test has one client process do, and what the client says came of it. Travels as JSON.

use serde::{Deserialize, Serialize};
use slackline_common::layout::Dtype;

/// Who plays a script.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Driver {
    /// The raw client, as any front end uses it.
    Client,
    /// Frames made by hand over a seat's connections: what the client would never send.
    Frames,
}

impl Driver {
    /// The word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Frames => "frames",
        }
    }

    /// The driver that a word names.
    pub fn find(word: &str) -> Option<Self> {
        [Self::Client, Self::Frames].into_iter().find(|driver| driver.name() == word)
    }
}

/// The values of one tensor.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Values {
    /// The same number everywhere.
    Fill(f32),
    /// One NaN first, ones after it (JSON has no NaN).
    NotANumber,
    /// Each by itself.
    List(Vec<f32>),
}

impl Values {
    /// All `len` of them.
    pub fn expand(&self, len: usize) -> Vec<f32> {
        match self {
            Self::Fill(value) => vec![*value; len],
            Self::NotANumber => (0..len).map(|at| if at == 0 { f32::NAN } else { 1.0 }).collect(),
            Self::List(values) => values.clone(),
        }
    }

    /// The shortest form of `values`.
    pub fn of(values: Vec<f32>) -> Self {
        let is_fill = values.windows(2).all(|pair| pair[0].to_bits() == pair[1].to_bits());
        match values.first() {
            Some(first) if is_fill => Self::Fill(*first),
            _ => Self::List(values),
        }
    }
}

/// A tensor and its first values.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// What the client holds it in.
    pub dtype: Dtype,
    /// First values.
    pub values: Values,
}

impl Declared {
    /// A tensor in `f32`.
    pub fn new(name: impl Into<String>, shape: &[u64], values: Values) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), dtype: Dtype::F32, values }
    }

    /// The same in another number format.
    #[must_use]
    pub fn held_in(self, dtype: Dtype) -> Self {
        Self { dtype, ..self }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        usize::try_from(self.shape.iter().product::<u64>()).expect("a test's tensor fits memory")
    }
}

/// Values for tensors that exist.
pub type Named = Vec<(String, Values)>;

/// One thing to do.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Op {
    /// Agree on tensors and first values.
    Init(Vec<Declared>),
    /// Push a step and wait for the acknowledgements.
    Push(Named, u32),
    /// Push a step without waiting.
    PushAsync(Named, u32),
    /// Wait for the acknowledgements.
    Flush,
    /// Read tensors as of the next step.
    Pull(Vec<String>),
    /// Push and read the same tensors back.
    PushPull(Named, u32),
    /// Wait for every live seat to come here as often.
    Barrier,
    /// Compare what the caller holds with the layout.
    Check(String, Vec<u64>, Dtype),
    /// Be busy for so many milliseconds: a slow machine.
    Work(u64),
    /// Read tensors, and go on after so many milliseconds without them.
    Held(Vec<String>, u64),
    /// All of it, so many times; only the last answer is told.
    Repeat(u32, Vec<Self>),
    /// It must fail.
    Fails(Box<Self>),
    /// By hand: push values under a step's number.
    PushAs(u64, Named, u32),
    /// By hand: read as of a step.
    PullAs(u64, Vec<String>),
    /// By hand: send first values again after the choice, and ask for them to be chosen.
    StageAgain(Vec<Declared>),
    /// By hand: a frame with a fault, otherwise a push of the tensor's values at this step.
    Broken(Fault, u64, Named),
}

impl Op {
    /// The same, and it must fail.
    pub fn fails(self) -> Self {
        Self::Fails(Box::new(self))
    }
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Fault {
    /// Another life of the seat sends it.
    Incarnation,
    /// It names a block that no shard has.
    UnknownBlock,
    /// A block has four bytes less than its elements need.
    ShortBlock,
    /// The table promises more bytes than the body has.
    LyingTable,
    /// No server has its shard.
    Shard,
    /// It declares more samples than a push may.
    Samples,
}

/// What came of one thing.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Answer {
    /// It worked and there is nothing to tell.
    Done,
    /// The seat whose first values count.
    Winner(u16),
    /// Tensors in the order asked, and how far ahead of the slowest seat this one was.
    Pulled {
        /// Values.
        values: Vec<Values>,
        /// Steps.
        staleness: u64,
    },
    /// It was not answered in time.
    Held,
    /// It failed, as it should.
    Failed {
        /// The error's name.
        kind: String,
        /// What it says.
        text: String,
    },
}

/// Everything a client has to tell.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Report {
    /// The seat it had.
    pub seat: u16,
    /// Steps it pushed.
    pub clock: u64,
    /// One answer for each thing it did.
    pub answers: Vec<Answer>,
}
