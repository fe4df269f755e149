//! Plays a script with the raw client.

use crate::clock::work_for;
use crate::script::{Answer, Declared, Named, Op, Report, Values};
use anyhow::{Context, Result, bail};
use slackline_common::layout::TensorRole;
use slackline_worker::client::{Client, ClientConfig, ClientError, Tensor};
use slackline_worker::net::NetError;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// A client with its script's names.
#[derive(Debug)]
struct Player {
    client: Client,
    /// Elements by name, from the last `Init`.
    lengths: BTreeMap<String, usize>,
}

/// Connects, does everything in order and leaves.
///
/// # Errors
/// The first thing that failed and should not, or did not fail and should.
pub async fn play(config: ClientConfig, script: &[Op]) -> Result<Report> {
    let client = Client::connect(config).await.context("connecting")?;
    let mut player = Player { client, lengths: BTreeMap::new() };
    let mut answers = Vec::with_capacity(script.len());
    for (at, op) in script.iter().enumerate() {
        let answer = player.act(op).await.with_context(|| format!("line {at} of the script"))?;
        answers.push(answer);
    }
    let (seat, clock) = (player.client.seat().0, player.client.clock().0);
    player.client.leave().await.context("leaving")?;
    Ok(Report { seat, clock, answers })
}

/// The name and the words of an error.
pub(crate) fn failed(error: &ClientError) -> Answer {
    let kind = match error {
        ClientError::Net(NetError::Refused { refusal, .. }) => format!("{refusal:?}"),
        ClientError::Net(net) => name(&format!("{net:?}")),
        other => name(&format!("{other:?}")),
    };
    Answer::Failed { kind, text: error.to_string() }
}

/// The first word of a value's debug form: its variant.
fn name(debug: &str) -> String {
    debug.chars().take_while(char::is_ascii_alphanumeric).collect()
}

impl Player {
    async fn act(&mut self, op: &Op) -> Result<Answer> {
        match op {
            Op::Fails(inner) => match Box::pin(self.step(inner)).await {
                Ok(answer) => bail!("it should fail and gave {answer:?}"),
                Err(error) => match error.downcast_ref::<ClientError>() {
                    Some(error) => Ok(failed(error)),
                    None => Err(error),
                },
            },
            Op::Repeat(times, ops) => {
                let mut last = Answer::Done;
                for _ in 0..*times {
                    for op in ops {
                        last = Box::pin(self.act(op)).await?;
                    }
                }
                Ok(last)
            }
            other => Box::pin(self.step(other)).await,
        }
    }

    async fn step(&mut self, op: &Op) -> Result<Answer> {
        match op {
            Op::Init(tensors) => return self.init(tensors).await,
            Op::Push(named, samples) => {
                let (names, values) = self.expand(named);
                self.client.push(&pairs(&names, &values), *samples).await?;
            }
            Op::PushAsync(named, samples) => {
                let (names, values) = self.expand(named);
                self.client.push_async(&pairs(&names, &values), *samples).await?;
            }
            Op::PushPull(named, samples) => {
                let (names, values) = self.expand(named);
                let values = self.client.push_pull(&pairs(&names, &values), *samples).await?;
                return Ok(self.pulled(values));
            }
            Op::Pull(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let values = self.client.pull(&names).await?;
                return Ok(self.pulled(values));
            }
            Op::Held(names, millis) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let patience = Duration::from_millis(*millis);
                let Ok(values) = timeout(patience, self.client.pull(&names)).await else {
                    return Ok(Answer::Held);
                };
                return Ok(self.pulled(values?));
            }
            Op::Flush => self.client.flush().await?,
            Op::Barrier => self.client.barrier().await?,
            Op::Check(name, shape, dtype) => drop(self.client.check(name, shape, *dtype)?),
            Op::Work(millis) => work_for(Duration::from_millis(*millis)).await,
            other => bail!("the raw client cannot do this: {other:?}"),
        }
        Ok(Answer::Done)
    }

    async fn init(&mut self, tensors: &[Declared]) -> Result<Answer> {
        let values: Vec<_> = tensors.iter().map(|it| it.values.expand(it.elements())).collect();
        let with_values = tensors.iter().zip(&values).map(|(it, values)| Tensor {
            name: &it.name,
            shape: &it.shape,
            dtype: it.dtype,
            role: TensorRole::Parameter,
            values,
        });
        let with_values: Vec<_> = with_values.collect();
        let outcome = self.client.init(&with_values).await?;
        self.lengths = tensors.iter().map(|it| (it.name.clone(), it.elements())).collect();
        Ok(Answer::Winner(outcome.winner.0))
    }

    /// Names, and values of the right length; of length 1 for a name that does not exist.
    fn expand<'a>(&self, named: &'a Named) -> (Vec<&'a str>, Vec<Vec<f32>>) {
        let length = |name: &str| self.lengths.get(name).copied().unwrap_or(1);
        named.iter().map(|(name, values)| (name.as_str(), values.expand(length(name)))).unzip()
    }

    fn pulled(&self, values: Vec<Vec<f32>>) -> Answer {
        let values = values.into_iter().map(Values::of).collect();
        Answer::Pulled { values, staleness: self.client.stats().staleness }
    }
}

fn pairs<'a>(names: &[&'a str], values: &'a [Vec<f32>]) -> Vec<(&'a str, &'a [f32])> {
    names.iter().copied().zip(values.iter().map(Vec::as_slice)).collect()
}
