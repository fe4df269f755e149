//! The raw client: push and pull of named tensors, for tests and for front ends in other languages.
//!
//! ```no_run
//! # use slackline_worker::client::*;
//! # async fn example(config: ClientConfig) -> Result<(), ClientError> {
//! let mut client = Client::connect(config).await?;
//! client.init(&[Tensor::new("weight", &[2, 3], &[0.0; 6])]).await?;
//! client.push(&[("weight", &[1.0; 6])], 32).await?;
//! let values = client.pull(&["weight"]).await?;
//! # let _ = values;
//! client.leave().await
//! # }
//! ```
//!
//! A step is one [`Client::push`]; it may hold any subset of the tensors, and moves this seat's clock
//! on every shard. A pull waits as the job's mode demands: in `bsp`, after `n` pushes, for `n` pushes
//! of every live seat. An error that the caller can avoid (a name, a shape) is found before anything
//! is sent; the client stays usable.

mod error;
mod membership;
#[cfg(test)]
mod tests;

pub use error::ClientError;
pub(crate) use membership::default_name;

use crate::client::membership::Membership;
use crate::core::bundle::Bundler;
use crate::core::pipeline::Tensors;
use crate::core::plan::Group;
use crate::net::Patience;
use crate::net::seat::Seat;
use slackline_common::config::{CertificatePaths, Link};
use slackline_common::ids::{SeatId, Step, TensorId};
use slackline_common::job::Job;
use slackline_common::layout::{Dtype, Init, Layout, TensorRole, TensorSpec};
use slackline_common::limits::PUSH_SAMPLES_MAX;
use slackline_common::quic::{CloseCode, Credentials};
use slackline_common::wire::control::{Phase, WorkerReport};
use std::time::Duration;

/// Where the cluster is and who we are.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of the coordinator.
    pub coordinator: String,
    /// Who this client is: a worker, by its certificate.
    pub identity: ClientIdentity,
    /// Name in logs and status; absent takes host and process.
    pub name: Option<String>,
    /// Seat it insists on; absent takes any that is free.
    pub seat: Option<u16>,
    /// Largest UDP payload in bytes that the path is known to carry.
    pub mtu: u16,
    /// How it sends.
    pub link: Link,
    /// How long lost peers may be away.
    pub patience: Patience,
    /// How long one call waits for others (for a job, for first values, for slower seats) before it
    /// fails with [`ClientError::PeerMissing`]. The client stays usable.
    pub wait: Duration,
}

/// The certificate of a client.
#[derive(Clone, Debug)]
pub enum ClientIdentity {
    /// In files.
    Files(CertificatePaths),
    /// In memory.
    Loaded(Credentials),
}

impl ClientConfig {
    /// The defaults: any seat, packets that every path carries, two minutes for a call.
    pub fn new(coordinator: impl Into<String>, identity: ClientIdentity) -> Self {
        Self {
            coordinator: coordinator.into(),
            identity,
            name: None,
            seat: None,
            mtu: slackline_common::quic::endpoint::MTU_DEFAULT,
            link: Link::default(),
            patience: Patience::default(),
            wait: Duration::from_secs(120),
        }
    }
}

/// A tensor and this client's first values for it.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Unique name.
    pub name: &'a str,
    /// Row-major shape.
    pub shape: &'a [u64],
    /// What the front end holds it in; decides how it travels.
    pub dtype: Dtype,
    /// What a push to it means.
    pub role: TensorRole,
    /// First values, row-major.
    pub values: &'a [f32],
}

impl<'a> Tensor<'a> {
    /// A trainable tensor in `f32`.
    pub const fn new(name: &'a str, shape: &'a [u64], values: &'a [f32]) -> Self {
        Self { name, shape, dtype: Dtype::F32, role: TensorRole::Parameter, values }
    }
}

/// How the first values came to be.
#[derive(Clone, Debug, PartialEq)]
pub struct InitOutcome {
    /// The seat whose values all seats start from.
    pub winner: SeatId,
    /// The tensors all seats agreed on.
    pub layout: Layout,
}

/// A seat driven by its caller.
#[derive(Debug)]
pub struct Client {
    membership: Membership,
    seat: Option<Seat>,
    barriers: u64,
}

impl Client {
    /// Joins the cluster and waits for its job, which must have an external model.
    ///
    /// # Errors
    /// [`ClientError::Credentials`], [`ClientError::Net`], [`ClientError::NotExternal`],
    /// [`ClientError::PeerMissing`], [`ClientError::JobEnded`].
    pub async fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let membership = Membership::join(config).await?;
        Ok(Self { membership, seat: None, barriers: 0 })
    }

    /// Agrees with all seats on the tensors and their first values. The first seat to have staged
    /// its values wins; the others start from the winner's. After an error it can be called again.
    ///
    /// # Errors
    /// [`ClientError::Layout`], [`ClientError::WrongShape`], [`ClientError::LayoutMismatch`] when
    /// another client came first with other tensors; as [`Client::connect`].
    pub async fn init(&mut self, tensors: &[Tensor<'_>]) -> Result<InitOutcome, ClientError> {
        if self.seat.is_some() {
            return Err(ClientError::AlreadyInitialised);
        }
        let layout = layout_of(tensors)?;
        let seat = self.membership.start(&layout).await?;
        if !self.membership.has_winner() {
            self.membership
                .wait_for(
                    &seat,
                    "staging first values",
                    seat.stage(|tensor| tensors[tensor.index()].values),
                )
                .await?;
        }
        let winner = self.membership.winner().await?;
        self.seat = Some(seat);
        self.membership.progress().set_phase(Phase::Computing);
        Ok(InitOutcome { winner, layout })
    }

    /// What is trained.
    pub fn job(&self) -> &Job {
        self.membership.job()
    }

    /// This client's seat.
    pub const fn seat(&self) -> SeatId {
        self.membership.seat()
    }

    /// Steps pushed.
    pub fn clock(&self) -> Step {
        self.seat.as_ref().map_or(Step(0), Seat::clock)
    }

    /// The figures that status shows; the loss is unknown to a raw client.
    pub fn stats(&self) -> WorkerReport {
        self.membership.progress().report()
    }

    /// Finds a tensor and checks what a caller holds for it, before anything is sent.
    ///
    /// # Errors
    /// [`ClientError::NotInitialised`], [`ClientError::UnknownTensor`], [`ClientError::WrongShape`],
    /// [`ClientError::WrongDtype`].
    pub fn check(&self, name: &str, shape: &[u64], dtype: Dtype) -> Result<TensorId, ClientError> {
        let seat = self.initialised()?;
        let tensor = find(seat, name)?;
        let spec = &seat.plan().layout().tensors()[tensor.index()];
        if spec.shape != shape {
            let (name, got, expected) = (name.to_owned(), shape.to_vec(), spec.shape.clone());
            return Err(ClientError::WrongShape { name, got, expected });
        }
        if spec.dtype != dtype {
            let (name, expected) = (name.to_owned(), spec.dtype);
            return Err(ClientError::WrongDtype { name, got: dtype, expected });
        }
        Ok(tensor)
    }

    /// Pushes one step and waits until every shard has acknowledged it. `samples` is its weight in a
    /// mean; 0 pushes nothing but the clock.
    ///
    /// # Errors
    /// As [`Client::check`]; [`ClientError::TwiceNamed`], [`ClientError::TooManySamples`];
    /// [`ClientError::StaleIncarnation`] when the seat was given to somebody else;
    /// [`ClientError::PeerMissing`], after which [`Client::flush`] can be called;
    /// [`ClientError::Stopping`] when the job was stopped: nothing of this step has been sent.
    pub async fn push(
        &mut self,
        tensors: &[(&str, &[f32])],
        samples: u32,
    ) -> Result<(), ClientError> {
        self.push_async(tensors, samples).await?;
        self.flush().await
    }

    /// As [`Client::push`], but waits only for permission to send (a bounded number of frames may be
    /// without an answer), not for the acknowledgement.
    ///
    /// # Errors
    /// As [`Client::push`]; also the failure of an earlier push.
    pub async fn push_async(
        &mut self,
        tensors: &[(&str, &[f32])],
        samples: u32,
    ) -> Result<(), ClientError> {
        let seat = self.seat.as_mut().ok_or(ClientError::NotInitialised)?;
        if samples > PUSH_SAMPLES_MAX {
            return Err(ClientError::TooManySamples { got: samples });
        }
        let tensors = resolve(seat, tensors)?;
        let ids: Vec<_> = tensors.iter().map(|(tensor, _)| *tensor).collect();
        let (servers, what) = (seat.servers().clone(), "slower seats before a push");
        self.membership.wait_for_others(what, &servers, seat.released()).await?;
        let bundler = seat.begin(&ids, samples)?;
        // No deadline here: half a step would be worse than a late one. A lost server ends it.
        send(seat, bundler, &tensors).await?;
        self.membership.progress().step(seat.clock(), samples, None);
        Ok(())
    }

    /// Waits until every push is acknowledged.
    ///
    /// # Errors
    /// The first failure of a push since the last call.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        let seat = self.seat.as_ref().ok_or(ClientError::NotInitialised)?;
        self.membership.wait_for(seat, "acknowledgement of a push", seat.flush()).await
    }

    /// Reads tensors as this seat may see them at its next step.
    ///
    /// # Errors
    /// As [`Client::check`]; [`ClientError::PeerMissing`] when slower seats or a server keep it
    /// waiting for too long; [`ClientError::Stopping`].
    pub async fn pull(&mut self, names: &[&str]) -> Result<Vec<Vec<f32>>, ClientError> {
        let seat = self.initialised()?;
        let layout = seat.plan().layout();
        let mut values = Vec::with_capacity(names.len());
        for name in names {
            values.push(vec![0.0; layout.range(find(seat, name)?).len()]);
        }
        let mut wanted: Vec<_> =
            names.iter().copied().zip(values.iter_mut().map(Vec::as_mut_slice)).collect();
        self.pull_into(&mut wanted).await?;
        Ok(values)
    }

    /// As [`Client::pull`], into the caller's memory.
    ///
    /// # Errors
    /// As [`Client::pull`]; [`ClientError::WrongLength`].
    pub async fn pull_into(
        &mut self,
        wanted: &mut [(&str, &mut [f32])],
    ) -> Result<(), ClientError> {
        let seat = self.seat.as_mut().ok_or(ClientError::NotInitialised)?;
        let named: Vec<_> = wanted.iter().map(|(name, values)| (*name, &**values)).collect();
        let ids: Vec<_> = resolve(seat, &named)?.into_iter().map(|(tensor, _)| tensor).collect();
        let groups = groups_of(seat, &ids);
        let plan = seat.plan().clone();
        let buffers = wanted.iter_mut().map(|(_, values)| &mut **values);
        let mut out = Tensors::new(&plan, ids.into_iter().zip(buffers));
        let pull = seat.request(&groups);
        let servers = seat.servers().clone();
        let receiving = seat.receive(&groups, pull, &mut out);
        self.membership.wait_for_others("parameters", &servers, receiving).await
    }

    /// One step: pushes tensors and reads the same ones back as of the next step, both on their way
    /// at once. Returns when all has been acknowledged and received.
    ///
    /// # Errors
    /// As [`Client::push`] and [`Client::pull`].
    pub async fn push_pull(
        &mut self,
        tensors: &[(&str, &[f32])],
        samples: u32,
    ) -> Result<Vec<Vec<f32>>, ClientError> {
        self.push_async(tensors, samples).await?;
        let names: Vec<_> = tensors.iter().map(|(name, _)| *name).collect();
        let values = self.pull(&names).await?;
        self.flush().await?;
        Ok(values)
    }

    /// Waits until every live seat has called this as often.
    ///
    /// # Errors
    /// [`ClientError::PeerMissing`], [`ClientError::JobEnded`], [`ClientError::Stopping`].
    pub async fn barrier(&mut self) -> Result<(), ClientError> {
        self.barriers += 1;
        self.membership.barrier(self.barriers).await
    }

    /// Waits for the acknowledgements, leaves all shards so that nobody waits for this seat, and
    /// says goodbye to the coordinator.
    ///
    /// # Errors
    /// What went wrong on the way; the connections are closed all the same.
    pub async fn leave(self) -> Result<(), ClientError> {
        let outcome = match &self.seat {
            Some(seat) => self.membership.wait_for(seat, "leaving", seat.leave()).await,
            None => Ok(()),
        };
        if let Some(seat) = &self.seat {
            seat.servers().close(CloseCode::Done, "the client leaves");
        }
        self.membership.finish().await;
        outcome
    }

    fn initialised(&self) -> Result<&Seat, ClientError> {
        self.seat.as_ref().ok_or(ClientError::NotInitialised)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(seat) = &self.seat {
            seat.servers().close(CloseCode::Done, "the client was dropped");
        }
    }
}

async fn send(
    seat: &mut Seat,
    mut bundler: Bundler,
    tensors: &[(TensorId, &[f32])],
) -> Result<(), crate::net::NetError> {
    for (tensor, values) in tensors {
        seat.push_tensor(&mut bundler, *tensor, values).await?;
    }
    seat.end(bundler).await
}

/// Names to tensors, each once and with as many values as it has elements.
fn resolve<'a>(
    seat: &Seat,
    named: &[(&str, &'a [f32])],
) -> Result<Vec<(TensorId, &'a [f32])>, ClientError> {
    let mut seen = vec![false; seat.plan().layout().tensors().len()];
    let check = |(name, values): &(&str, &'a [f32])| {
        let tensor = find(seat, name)?;
        let expected = seat.plan().layout().range(tensor).len();
        if values.len() != expected {
            let (name, got) = ((*name).to_owned(), values.len());
            return Err(ClientError::WrongLength { name, got, expected });
        }
        if std::mem::replace(&mut seen[tensor.index()], true) {
            return Err(ClientError::TwiceNamed { name: (*name).to_owned() });
        }
        Ok((tensor, *values))
    };
    named.iter().map(check).collect()
}

fn find(seat: &Seat, name: &str) -> Result<TensorId, ClientError> {
    let layout = seat.plan().layout();
    layout.find(name).ok_or_else(|| ClientError::unknown(layout, name))
}

fn groups_of(seat: &Seat, tensors: &[TensorId]) -> Vec<Group> {
    let mut wanted = vec![false; seat.plan().layout().tensors().len()];
    tensors.iter().for_each(|tensor| wanted[tensor.index()] = true);
    seat.plan().groups(|tensor| wanted[tensor.index()])
}

/// The layout that the caller's tensors make, with as many values as elements.
fn layout_of(tensors: &[Tensor<'_>]) -> Result<Layout, ClientError> {
    let spec = |tensor: &Tensor<'_>| TensorSpec {
        name: tensor.name.to_owned(),
        shape: tensor.shape.to_vec(),
        dtype: tensor.dtype,
        role: tensor.role,
        init: Init::External,
    };
    let layout = Layout::new(tensors.iter().map(spec).collect())?;
    for (tensor, position) in tensors.iter().zip(0u32..) {
        let expected = layout.range(TensorId(position)).len();
        if tensor.values.len() != expected {
            let (name, got) = (tensor.name.to_owned(), tensor.values.len());
            return Err(ClientError::WrongLength { name, got, expected });
        }
    }
    Ok(layout)
}
