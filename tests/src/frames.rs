//! Plays a script with frames made by hand: the same joining, layout and connections as any seat,
//! but old steps, repeated parts and broken frames, which the raw client never sends.

use crate::player::failed;
use crate::script::{Answer, Declared, Fault, Named, Op, Report, Values};
use anyhow::{Result, bail};
use bytes::Bytes;
use slackline_common::ids::{BlockId, Incarnation, SeatId, ShardId, Step, TensorId, Version};
use slackline_common::job::Job;
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::limits::PUSH_SAMPLES_MAX;
use slackline_common::quic::{Credentials, TransportSettings, client_endpoint};
use slackline_common::wire::control::{FromWorker, Hello, StartWorker, ToWorker};
use slackline_common::wire::frame::{Request, RequestKind};
use slackline_common::wire::pool::BufferPool;
use slackline_worker::client::ClientError;
use slackline_worker::core::bundle::{Bundler, Head, Sender};
use slackline_worker::core::pipeline::{Tensors, decode};
use slackline_worker::core::plan::Plan;
use slackline_worker::core::uplink::Uplink;
use slackline_worker::net::coordinator::{Coordinator, Event};
use slackline_worker::net::progress::Progress;
use slackline_worker::net::seat::Seat;
use slackline_worker::net::{NetError, Patience};
use std::sync::Arc;

/// A seat whose frames are made here.
#[derive(Debug)]
struct Hand {
    endpoint: quinn::Endpoint,
    coordinator: Coordinator,
    progress: Arc<Progress>,
    hello: Hello,
    job: Box<Job>,
    sender: Sender,
    pool: BufferPool,
    seat: Option<Seat>,
    barriers: u64,
    /// One more than the highest step pushed.
    clock: Step,
}

/// Joins, does everything in order and leaves.
///
/// # Errors
/// The first thing that failed and should not, or did not fail and should.
pub async fn play(
    coordinator: &str,
    credentials: &Credentials,
    seat: u16,
    script: &[Op],
) -> Result<Report> {
    let mut hand = Hand::join(coordinator, credentials, seat).await?;
    let mut answers = Vec::with_capacity(script.len());
    for op in script {
        let answer = match op {
            Op::Fails(inner) => match hand.act(inner).await {
                Ok(answer) => bail!("{inner:?} should fail and gave {answer:?}"),
                Err(error) => match error.downcast::<NetError>() {
                    Ok(error) => failed(&ClientError::Net(error)),
                    Err(error) => return Err(error),
                },
            },
            other => hand.act(other).await?,
        };
        answers.push(answer);
    }
    let clock = hand.clock.0;
    hand.leave().await?;
    Ok(Report { seat, clock, answers })
}

impl Hand {
    async fn join(address: &str, credentials: &Credentials, seat: u16) -> Result<Self> {
        let endpoint = client_endpoint(credentials, &TransportSettings::with_mtu(6500))?;
        let hello =
            Hello { name: format!("hand-{seat}"), build: env!("CARGO_PKG_VERSION").to_owned() };
        let progress = Arc::new(Progress::default());
        let connecting = Coordinator::connect(
            &endpoint,
            address,
            hello.clone(),
            Some(SeatId(seat)),
            Arc::clone(&progress),
            Patience::default(),
        );
        let mut coordinator = connecting.await?;
        let (job, sender) = next(&mut coordinator, |message| match message {
            ToWorker::Job { job, seat, incarnation } => Some((job, Sender { seat, incarnation })),
            _ => None,
        })
        .await?;
        Ok(Self {
            endpoint,
            coordinator,
            progress,
            hello,
            job,
            sender,
            pool: BufferPool::new(16),
            seat: None,
            barriers: 0,
            clock: Step(0),
        })
    }

    async fn act(&mut self, op: &Op) -> Result<Answer> {
        match op {
            Op::Init(tensors) => self.init(tensors).await,
            Op::StageAgain(tensors) => self.stage(tensors).await,
            Op::PushAs(step, named, samples) => self.push(Step(*step), named, *samples).await,
            Op::PullAs(step, names) => self.pull(Step(*step), names).await,
            Op::Broken(fault, step, named) => self.broken(*fault, Step(*step), named).await,
            Op::Barrier => {
                self.barriers += 1;
                let number = self.barriers;
                self.say(FromWorker::Barrier(number)).await?;
                let passed = |message| matches!(message, ToWorker::BarrierPassed(n) if n >= number);
                next(&mut self.coordinator, |message| passed(message).then_some(())).await?;
                Ok(Answer::Done)
            }
            other => bail!("a script of frames cannot do this: {other:?}"),
        }
    }

    async fn say(&self, message: FromWorker) -> Result<()> {
        Ok(self.coordinator.outbox().send(message).await?)
    }

    async fn init(&mut self, tensors: &[Declared]) -> Result<Answer> {
        let spec = |it: &Declared| TensorSpec {
            dtype: it.dtype,
            ..TensorSpec::parameter(it.name.clone(), &it.shape, Init::External)
        };
        let layout = Layout::new(tensors.iter().map(spec).collect())?;
        self.say(FromWorker::ProposeLayout(layout)).await?;
        let start: StartWorker = next(&mut self.coordinator, |message| match message {
            ToWorker::Start(start) => Some(start),
            _ => None,
        })
        .await?;
        let (hello, patience) = (self.hello.clone(), Patience::default());
        let connecting =
            Seat::connect(&self.endpoint, &self.job, start, self.sender, hello, patience);
        self.seat = Some(Box::pin(connecting).await?);
        self.stage(tensors).await
    }

    /// Sends first values to every shard, says so and hears whose count.
    async fn stage(&mut self, tensors: &[Declared]) -> Result<Answer> {
        let values: Vec<_> = tensors.iter().map(|it| it.values.expand(it.elements())).collect();
        self.seat()?.stage(|tensor| &values[tensor.index()]).await?;
        self.say(FromWorker::InitStaged).await?;
        let winner = next(&mut self.coordinator, |message| match message {
            ToWorker::Initialised { winner } => Some(winner),
            _ => None,
        });
        Ok(Answer::Winner(winner.await?.0))
    }

    fn seat(&self) -> Result<&Seat> {
        self.seat.as_ref().ok_or_else(|| anyhow::anyhow!("the script begins with Init"))
    }

    /// The frames of a step, as a seat would send them if this were its step.
    fn parts(&self, step: Step, named: &Named, samples: u32) -> Result<Vec<Request>> {
        let plan = self.seat()?.plan();
        let tensors = named.iter().map(|(name, _)| find(plan, name));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let versions = vec![Version(step.0); plan.shard_count()];
        let head = Head { sender: self.sender, step, samples, versions, norms: Vec::new() };
        let mut uplink = Uplink::new(&self.job, plan.layout(), self.sender.seat);
        let mut bundler = Bundler::push(plan, &self.pool, head, &tensors);
        for (tensor, (_, values)) in tensors.iter().zip(named) {
            let values = values.expand(plan.layout().range(*tensor).len());
            for block in plan.layout().blocks_of(*tensor) {
                bundler.handle_block(block, &values[block.range_in_tensor()], &mut uplink);
            }
        }
        Ok(std::iter::from_fn(|| bundler.poll_part()).collect())
    }

    async fn push(&mut self, step: Step, named: &Named, samples: u32) -> Result<Answer> {
        for part in self.parts(step, named, samples)? {
            self.seat()?.servers().send(part).await?;
        }
        self.seat()?.servers().flush().await?;
        self.clock = self.clock.max(step.next());
        Ok(Answer::Done)
    }

    async fn broken(&self, fault: Fault, step: Step, named: &Named) -> Result<Answer> {
        let is_full = |part: &Request| !part.blocks.is_empty();
        let part = self.parts(step, named, 1)?.into_iter().find(is_full);
        let Some(mut part) = part else { bail!("a broken frame needs a block to break") };
        let shorter = |body: &Bytes| body.slice(..body.len() - 4);
        match fault {
            Fault::Incarnation => part.incarnation = Incarnation(part.incarnation.0 + 1),
            Fault::UnknownBlock => part.blocks[0].block = BlockId(u32::MAX),
            Fault::ShortBlock => {
                part.body = shorter(&part.body);
                let last = part.blocks.len() - 1;
                part.blocks[last].bytes -= 4;
            }
            Fault::LyingTable => part.body = shorter(&part.body),
            Fault::Shard => {
                let servers = self.seat()?.plan().servers();
                part.shard = ShardId(part.shard.0 + servers * 100);
            }
            Fault::Samples => part.samples = PUSH_SAMPLES_MAX + 1,
        }
        self.seat()?.servers().send(part).await?;
        self.seat()?.servers().flush().await?;
        Ok(Answer::Done)
    }

    async fn pull(&self, step: Step, names: &[String]) -> Result<Answer> {
        let plan = self.seat()?.plan();
        let tensors = names.iter().map(|name| find(plan, name)).collect::<Result<Vec<_>>>()?;
        let groups = plan.groups(|tensor| tensors.contains(&tensor));
        let requests = groups.iter().map(|group| {
            let blocks = group.blocks.clone();
            let base = self.sender.request(RequestKind::Pull, group.shard, step);
            (Request { blocks, ..base }, group.bytes)
        });
        let mut pull = self.seat()?.servers().pull(requests.collect());
        let lengths = tensors.iter().map(|tensor| plan.layout().range(*tensor).len());
        let mut values: Vec<_> = lengths.map(|len| vec![0.0; len]).collect();
        let buffers = values.iter_mut().map(Vec::as_mut_slice);
        let mut out = Tensors::new(plan, tensors.iter().copied().zip(buffers));
        let mut staleness = 0;
        while let Some((position, reply)) = pull.next().await {
            let reply = reply?;
            let group = &groups[position];
            decode(plan, &group.blocks, &reply, &mut out)?;
            // Nothing else is on its way: the latest word of the shard is the one in this reply.
            let slowest = self.seat()?.servers().slowest(group.shard);
            staleness = step.0.saturating_sub(slowest.0).max(staleness);
        }
        let values = values.into_iter().map(Values::of).collect();
        Ok(Answer::Pulled { values, staleness })
    }

    async fn leave(self) -> Result<()> {
        self.seat()?.leave().await?;
        self.say(FromWorker::Finished(self.progress.report())).await?;
        self.coordinator.outbox().deliver().await;
        Ok(())
    }
}

fn find(plan: &Plan, name: &str) -> Result<TensorId> {
    plan.layout().find(name).ok_or_else(|| anyhow::anyhow!("the script has no tensor {name:?}"))
}

/// The first message that `wanted` takes something from.
async fn next<T>(
    coordinator: &mut Coordinator,
    mut wanted: impl FnMut(ToWorker) -> Option<T>,
) -> Result<T> {
    loop {
        match coordinator.next().await {
            Event::Lost(error) => return Err(error.into()),
            Event::Message(message) => {
                if let Some(found) = wanted(message) {
                    return Ok(found);
                }
            }
        }
    }
}
