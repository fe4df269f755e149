//! Batches filled ahead of the computation, by a thread of their own.
//!
//! ```text
//! compute thread ── BatchOrder (at most BATCH_ORDERS_MAX) ──▶ data thread
//!                ◀── Filled (at most PREFETCH_BATCHES) ──────
//!                ─── used Batch, to be filled again ────────▶
//! ```
//!
//! Buffers go round, so a step allocates nothing once they have grown to the batch size.

use super::order::{BatchOrder, EpochOrder, Order};
use super::{Dataset, empty_batch};
use crate::train::Batch;
use slackline_common::blame::Blame;
use slackline_common::limits::{BATCH_ORDERS_MAX, PREFETCH_BATCHES, PUSH_SAMPLES_MAX};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A batch and what it was made for.
#[derive(Debug)]
pub struct Filled {
    /// The order it fills.
    pub order: BatchOrder,
    /// The samples. Hand it to [`Prefetch::recycle`] after use.
    pub batch: Batch,
}

/// Why there is no batch.
#[derive(Debug, thiserror::Error)]
pub enum PrefetchError {
    /// The operating system gave no thread.
    #[error("start the data thread: {0}")]
    Start(#[from] io::Error),
    /// The order names samples that are not there: this worker's data is not what the job was
    /// planned for.
    #[error(
        "epoch {} positions {:?} were leased, but this worker's data has {samples} samples; \
         all workers need the same data files", .order.epoch, .order.positions
    )]
    Positions {
        /// The order.
        order: BatchOrder,
        /// Samples here.
        samples: u64,
    },
    /// More samples than one push may declare.
    #[error("a batch of {samples} samples was leased; at most {PUSH_SAMPLES_MAX} are allowed")]
    TooLarge {
        /// Samples of the batch.
        samples: u64,
    },
    /// The queue of orders is full: the caller orders more than it takes.
    #[error("{BATCH_ORDERS_MAX} batches are ordered and not taken; take some before ordering more")]
    QueueFull,
    /// Nothing was ordered, so waiting would never end.
    #[error("no batch is ordered")]
    NothingOrdered,
    /// The deadline passed.
    #[error(
        "the data thread has not filled epoch {} positions {:?} within {waited:?}",
        .order.epoch, .order.positions
    )]
    Deadline {
        /// The oldest order without a batch.
        order: BatchOrder,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The data thread panicked.
    #[error("the data thread died: {message}")]
    Died {
        /// Its last words.
        message: String,
    },
}

impl PrefetchError {
    /// Whose move it is.
    pub const fn blame(&self) -> Blame {
        match self {
            Self::Positions { .. } => Blame::Config,
            Self::TooLarge { .. } => Blame::Peer,
            Self::Start(_)
            | Self::QueueFull
            | Self::NothingOrdered
            | Self::Deadline { .. }
            | Self::Died { .. } => Blame::Us,
        }
    }
}

/// The compute thread's end. Dropping it stops the data thread and waits for it: at most as long as
/// filling one batch takes.
#[derive(Debug)]
pub struct Prefetch {
    dataset: Arc<dyn Dataset>,
    /// `None` once the thread is gone.
    thread: Option<Thread>,
    /// Orders without a batch, oldest first; never more than [`BATCH_ORDERS_MAX`].
    outstanding: std::collections::VecDeque<BatchOrder>,
    died: Option<String>,
}

#[derive(Debug)]
struct Thread {
    orders: SyncSender<BatchOrder>,
    filled: Receiver<Filled>,
    used: SyncSender<Batch>,
    handle: JoinHandle<()>,
}

impl Prefetch {
    /// Starts the data thread. It reads `dataset` in the order that the job asks for.
    ///
    /// # Errors
    /// [`PrefetchError::Start`].
    pub fn start(dataset: Arc<dyn Dataset>, order: Order) -> Result<Self, PrefetchError> {
        let (orders, orders_in) = sync_channel(BATCH_ORDERS_MAX);
        let (filled_out, filled) = sync_channel(PREFETCH_BATCHES);
        // Room for every buffer there is: those filled, one being filled, one being computed on.
        let (used, used_in) = sync_channel(PREFETCH_BATCHES + 2);
        let data = Arc::clone(&dataset);
        let handle = thread::Builder::new()
            .name("data".to_owned())
            .spawn(move || fill(&*data, order, &orders_in, &used_in, &filled_out))?;
        Ok(Self {
            dataset,
            thread: Some(Thread { orders, filled, used, handle }),
            outstanding: std::collections::VecDeque::with_capacity(BATCH_ORDERS_MAX),
            died: None,
        })
    }

    /// How many more batches may be ordered now.
    pub fn room(&self) -> usize {
        BATCH_ORDERS_MAX - self.outstanding.len()
    }

    /// Orders one batch. Never waits.
    ///
    /// # Errors
    /// [`PrefetchError::Positions`], [`PrefetchError::TooLarge`] or [`PrefetchError::QueueFull`], and
    /// the order is not taken; [`PrefetchError::Died`].
    pub fn order(&mut self, order: BatchOrder) -> Result<(), PrefetchError> {
        let samples = self.dataset.len();
        if order.positions.end > samples || order.positions.start > order.positions.end {
            return Err(PrefetchError::Positions { order, samples });
        }
        let count = order.positions.end - order.positions.start;
        if count > u64::from(PUSH_SAMPLES_MAX) {
            return Err(PrefetchError::TooLarge { samples: count });
        }
        if self.room() == 0 {
            return Err(PrefetchError::QueueFull);
        }
        let Some(thread) = &self.thread else { return Err(self.dead()) };
        match thread.orders.try_send(order.clone()) {
            Ok(()) => {
                self.outstanding.push_back(order);
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(PrefetchError::QueueFull),
            Err(TrySendError::Disconnected(_)) => Err(self.dead()),
        }
    }

    /// The batch of the oldest order, waited for at most for `patience`. Batches come in the order in
    /// which they were ordered.
    ///
    /// # Errors
    /// [`PrefetchError::NothingOrdered`]; [`PrefetchError::Deadline`], after which the batch can still
    /// be asked for; [`PrefetchError::Died`], also when the data set panicked while it was read.
    pub fn next(&mut self, patience: Duration) -> Result<Filled, PrefetchError> {
        let Some(thread) = &self.thread else { return Err(self.dead()) };
        let Some(oldest) = self.outstanding.front() else {
            return Err(PrefetchError::NothingOrdered);
        };
        match thread.filled.recv_timeout(patience) {
            Ok(filled) => {
                let expected = self.outstanding.pop_front();
                assert_eq!(expected.as_ref(), Some(&filled.order), "one thread keeps the order");
                Ok(filled)
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(PrefetchError::Deadline { order: oldest.clone(), waited: patience })
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.dead()),
        }
    }

    /// Gives a batch's memory back, to be filled again.
    pub fn recycle(&self, batch: Batch) {
        if let Some(thread) = &self.thread {
            // With no room, or no thread, the memory is simply freed.
            drop(thread.used.try_send(batch));
        }
    }

    /// Ends the thread and finds out what it died of.
    fn dead(&mut self) -> PrefetchError {
        if let Some(message) = self.thread.take().and_then(Thread::stop) {
            self.died = Some(message);
        }
        let message = self.died.clone().unwrap_or_else(|| "it ended too early".to_owned());
        PrefetchError::Died { message }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        if let Some(message) = self.thread.take().and_then(Thread::stop) {
            tracing::error!(message, "the data thread died");
        }
    }
}

impl Thread {
    /// Closes the queues, on which the thread ends; returns the message if it panicked.
    fn stop(self) -> Option<String> {
        let Self { orders, filled, used, handle } = self;
        drop((orders, filled, used));
        let panic = handle.join().err()?;
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .or_else(|| Some("it panicked without a message".to_owned()))
    }
}

/// The whole data thread: ends when either queue of the compute thread is closed.
fn fill(
    dataset: &dyn Dataset,
    order: Order,
    orders: &Receiver<BatchOrder>,
    used: &Receiver<Batch>,
    filled: &SyncSender<Filled>,
) {
    let mut current: Option<(u64, EpochOrder)> = None;
    let mut indices = Vec::new();
    while let Ok(wanted) = orders.recv() {
        let epoch = match current {
            Some((number, epoch)) if number == wanted.epoch => epoch,
            _ => current.insert((wanted.epoch, order.epoch(wanted.epoch, dataset.len()))).1,
        };
        indices.clear();
        indices.extend(wanted.positions.clone().map(|position| epoch.get(position)));
        let mut batch = match used.try_recv() {
            Ok(batch) => batch,
            Err(TryRecvError::Empty) => empty_batch(dataset.sample()),
            Err(TryRecvError::Disconnected) => return,
        };
        dataset.fill(&indices, &mut batch);
        if filled.send(Filled { order: wanted, batch }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;
    use crate::train::Inputs;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Long enough for any machine; nothing here waits for it to pass.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Sample `i` is the number `i` with label `i`; reading sample `faulty` panics.
    #[derive(Debug)]
    struct Count {
        len: u64,
        faulty: Option<u64>,
        fills: AtomicU64,
    }

    impl Dataset for Count {
        fn len(&self) -> u64 {
            self.len
        }

        fn sample(&self) -> Sample {
            Sample::Dense { inputs: 1 }
        }

        fn labels_max(&self) -> u32 {
            0
        }

        fn fill(&self, indices: &[u64], batch: &mut Batch) {
            self.fills.fetch_add(1, Ordering::Relaxed);
            assert!(self.faulty.is_none_or(|faulty| !indices.contains(&faulty)), "bad sector");
            batch.samples = indices.len();
            batch.targets.clear();
            batch.targets.extend(indices.iter().map(|index| u32::try_from(*index).unwrap()));
            let Inputs::Dense(inputs) = &mut batch.inputs else { panic!("dense was given") };
            inputs.clear();
            inputs.extend(indices.iter().map(|index| *index as f32));
        }
    }

    fn count(len: u64, faulty: Option<u64>) -> Arc<Count> {
        Arc::new(Count { len, faulty, fills: AtomicU64::new(0) })
    }

    fn batch_order(epoch: u64, positions: std::ops::Range<u64>) -> BatchOrder {
        BatchOrder { epoch, positions }
    }

    #[test]
    fn batches_come_in_the_order_they_were_asked_for_with_the_samples_of_their_epoch() {
        let order = Order::Shuffled { seed: 3 };
        let mut prefetch = Prefetch::start(count(50, None), order).unwrap();
        let wanted: Vec<_> = [(0, 0..20), (0, 20..40), (0, 40..50), (0, 50..50), (1, 0..50)]
            .map(|(epoch, positions)| batch_order(epoch, positions))
            .into();
        wanted.iter().for_each(|wanted| prefetch.order(wanted.clone()).unwrap());
        let mut first_epoch = Vec::new();
        for wanted in wanted {
            let filled = prefetch.next(PATIENCE).unwrap();
            assert_eq!(filled.order, wanted);
            let epoch = order.epoch(wanted.epoch, 50);
            let expected: Vec<_> =
                wanted.positions.map(|at| u32::try_from(epoch.get(at)).unwrap()).collect();
            assert_eq!((filled.batch.samples, &filled.batch.targets), (expected.len(), &expected));
            if wanted.epoch == 0 {
                first_epoch.extend(expected);
            }
            prefetch.recycle(filled.batch);
        }
        first_epoch.sort_unstable();
        assert!(first_epoch.into_iter().eq(0..50), "each position exactly once");
    }

    #[test]
    fn buffers_go_round_instead_of_being_allocated() {
        let mut prefetch = Prefetch::start(count(6400, None), Order::AsStored).unwrap();
        let mut buffers = BTreeSet::new();
        for step in 0..100 {
            prefetch.order(batch_order(0, step * 64..(step + 1) * 64)).unwrap();
            let filled = prefetch.next(PATIENCE).unwrap();
            buffers.insert(filled.batch.targets.as_ptr() as usize);
            prefetch.recycle(filled.batch);
        }
        assert!(buffers.len() <= PREFETCH_BATCHES + 2, "{} buffers", buffers.len());
    }

    #[test]
    fn the_thread_runs_ahead_but_no_further_than_its_bound() {
        let dataset = count(1000, None);
        let mut prefetch = Prefetch::start(dataset.clone(), Order::AsStored).unwrap();
        (0..100).for_each(|i| prefetch.order(batch_order(0, i..i + 1)).unwrap());
        for taken in 1..=100 {
            prefetch.next(PATIENCE).unwrap();
            let fills = dataset.fills.load(Ordering::Relaxed);
            // Those taken, those waiting, and one in the thread's hands.
            assert!(fills <= taken + PREFETCH_BATCHES as u64 + 1, "{fills} after {taken}");
        }
    }

    #[test]
    fn dropping_it_early_ends_the_thread() {
        let dataset = count(1000, None);
        let mut prefetch = Prefetch::start(dataset.clone(), Order::AsStored).unwrap();
        (0..100).for_each(|i| prefetch.order(batch_order(0, i..i + 1)).unwrap());
        prefetch.next(PATIENCE).unwrap();
        drop(prefetch);
        assert_eq!(Arc::strong_count(&dataset), 1, "the thread has let go of the data");
        assert!(dataset.fills.load(Ordering::Relaxed) < 100);
    }

    #[test]
    fn a_panic_while_reading_reaches_the_reader_with_its_message() {
        let mut prefetch = Prefetch::start(count(10, Some(7)), Order::AsStored).unwrap();
        prefetch.order(batch_order(0, 0..5)).unwrap();
        prefetch.order(batch_order(0, 5..10)).unwrap();
        assert_eq!(prefetch.next(PATIENCE).unwrap().batch.samples, 5);
        for _ in 0..2 {
            let error = prefetch.next(PATIENCE).unwrap_err();
            assert_eq!(error.to_string(), "the data thread died: bad sector");
            assert_eq!(error.blame(), Blame::Us);
        }
        let error = prefetch.order(batch_order(0, 0..1)).unwrap_err();
        assert!(matches!(error, PrefetchError::Died { .. }), "{error}");
    }

    #[test]
    fn waiting_for_nothing_and_past_the_deadline_says_so() {
        let mut prefetch = Prefetch::start(count(10, None), Order::AsStored).unwrap();
        let error = prefetch.next(PATIENCE).unwrap_err();
        assert!(matches!(error, PrefetchError::NothingOrdered), "{error}");

        /// Fills when it is told to.
        #[derive(Debug)]
        struct Gate(std::sync::Mutex<Receiver<()>>);
        impl Dataset for Gate {
            fn len(&self) -> u64 {
                1
            }
            fn sample(&self) -> Sample {
                Sample::Dense { inputs: 1 }
            }
            fn labels_max(&self) -> u32 {
                0
            }
            fn fill(&self, indices: &[u64], batch: &mut Batch) {
                self.0.lock().unwrap().recv().unwrap();
                batch.samples = indices.len();
            }
        }
        let (open, gate) = sync_channel(1);
        let mut prefetch = Prefetch::start(Arc::new(Gate(gate.into())), Order::AsStored).unwrap();
        prefetch.order(batch_order(2, 0..1)).unwrap();
        let error = prefetch.next(Duration::ZERO).unwrap_err();
        let text = "the data thread has not filled epoch 2 positions 0..1 within 0ns";
        assert_eq!(error.to_string(), text);
        open.send(()).unwrap();
        assert_eq!(prefetch.next(PATIENCE).unwrap().batch.samples, 1, "still to be had");
    }

    #[test]
    fn positions_past_the_data_and_a_full_queue_are_refused() {
        let mut prefetch = Prefetch::start(count(10, None), Order::AsStored).unwrap();
        let error = prefetch.order(batch_order(0, 8..11)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "epoch 0 positions 8..11 were leased, but this worker's data has 10 samples; \
             all workers need the same data files"
        );
        assert_eq!(error.blame(), Blame::Config);
        while prefetch.room() > 0 {
            prefetch.order(batch_order(0, 0..1)).unwrap();
        }
        let error = prefetch.order(batch_order(0, 0..1)).unwrap_err();
        assert!(matches!(error, PrefetchError::QueueFull), "{error}");
        let many = count(1 << 40, None);
        let mut prefetch = Prefetch::start(many, Order::AsStored).unwrap();
        let error = prefetch.order(batch_order(0, 0..1 << 30)).unwrap_err();
        assert!(matches!(error, PrefetchError::TooLarge { .. }), "{error}");
    }
}
