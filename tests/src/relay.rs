//! A slow, long, lossy link between a client and a server, inside the test's own process.
//!
//! A [`Relay`] takes UDP datagrams at an address of its own and hands them on to the server, and the
//! answers back, each way through a [`Link`]: a queue with a rate and a bound, a delay, and seeded
//! dice for loss, jitter, reordering and repetition. The link is pure (time goes in, datagrams with a
//! due time come out); a thread with one runtime waits for sockets and due times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// IPv4 and UDP headers, which take room on a line too.
pub const HEADER_BYTES: usize = 28;
/// Datagrams between the sockets of the server's side and the relay.
const INBOX: usize = 256;
/// Largest UDP datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// How far a datagram that is put out of order falls back at most.
const REORDER_DELAY: Duration = Duration::from_millis(5);

/// What one direction does to datagrams. The default hands them on at once.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// 10⁶ bits per second, IP and UDP headers included; `None` is as fast as the machine.
    pub megabits: Option<f64>,
    /// Bytes that may wait for the line; what comes on top is dropped.
    pub queue_bytes: usize,
    /// Time on the way.
    pub delay: Duration,
    /// At most so much is added to `delay`, evenly spread, in order.
    pub jitter: Duration,
    /// Share that is lost.
    pub loss: f64,
    /// Share that falls back behind later ones, by up to 5 ms.
    pub reorder: f64,
    /// Share that arrives twice.
    pub duplicate: f64,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            megabits: None,
            queue_bytes: 256 << 10,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
        }
    }
}

/// What happened to datagrams in one direction.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// That came.
    pub taken: u64,
    /// That the dice dropped.
    pub lost: u64,
    /// That found the queue full.
    pub overflowed: u64,
    /// That came while the link was cut.
    pub cut: u64,
    /// That fell back.
    pub reordered: u64,
    /// That were doubled.
    pub duplicated: u64,
}

/// splitmix64.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    /// Even in `[0, 1)`.
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// One direction, driven from outside: `now` is the time since the start.
#[derive(Debug)]
pub struct Link<T> {
    path: Path,
    dice: Dice,
    is_cut: bool,
    /// When the last byte of the queue leaves.
    free: Duration,
    /// When the last datagram that kept its place arrives.
    last: Duration,
    /// Due time and number, earliest first; the number finds the datagram.
    due: BinaryHeap<Reverse<(Duration, u64)>>,
    on_way: BTreeMap<u64, T>,
    next: u64,
    counts: Counts,
}

impl<T: Clone> Link<T> {
    /// A link whose dice follow from `seed`.
    pub fn new(path: Path, seed: u64) -> Self {
        Self {
            path,
            dice: Dice(seed),
            is_cut: false,
            free: Duration::ZERO,
            last: Duration::ZERO,
            due: BinaryHeap::new(),
            on_way: BTreeMap::new(),
            next: 0,
            counts: Counts::default(),
        }
    }

    /// Drops everything from now on, and what is on its way, or no longer.
    pub fn set_cut(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
        if is_cut {
            self.counts.cut += self.on_way.len() as u64;
            self.due.clear();
            self.on_way.clear();
        }
    }

    /// What happened so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// A datagram with `bytes` of payload comes at `now`.
    pub fn take(&mut self, now: Duration, bytes: usize, datagram: T) {
        self.counts.taken += 1;
        // Every datagram rolls all dice: a change of one share leaves the fate of the others as it is.
        let [lost, late, back, twice] = [(); 4].map(|()| self.dice.roll());
        if self.is_cut {
            self.counts.cut += 1;
            return;
        }
        if lost < self.path.loss {
            self.counts.lost += 1;
            return;
        }
        let mut leaves = now;
        if let Some(megabits) = self.path.megabits {
            let rate = megabits * 1e6 / 8.0;
            let size = (bytes + HEADER_BYTES) as f64;
            let waiting = self.free.saturating_sub(now).as_secs_f64() * rate;
            if waiting + size > self.path.queue_bytes as f64 {
                self.counts.overflowed += 1;
                return;
            }
            self.free = self.free.max(now) + Duration::from_secs_f64(size / rate);
            leaves = self.free;
        }
        let mut due = (leaves + self.path.delay + self.path.jitter.mul_f64(late)).max(self.last);
        if back < self.path.reorder {
            self.counts.reordered += 1;
            due += REORDER_DELAY.mul_f64(back / self.path.reorder);
        } else {
            self.last = due;
        }
        if twice < self.path.duplicate {
            self.counts.duplicated += 1;
            self.put(due, datagram.clone());
        }
        self.put(due, datagram);
    }

    fn put(&mut self, due: Duration, datagram: T) {
        self.due.push(Reverse((due, self.next)));
        self.on_way.insert(self.next, datagram);
        self.next += 1;
    }

    /// When the next datagram arrives.
    pub fn next_at(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// The next datagram that has arrived by `now`.
    pub fn poll(&mut self, now: Duration) -> Option<T> {
        self.next_at().filter(|due| *due <= now)?;
        let Reverse((_, number)) = self.due.pop()?;
        self.on_way.remove(&number)
    }
}

/// A caller, by the order of its first datagram, and what it sends or is sent.
type Datagram = (usize, Vec<u8>);

/// Both ways.
#[derive(Debug)]
struct Line {
    up: Link<Datagram>,
    down: Link<Datagram>,
}

/// A running relay. Dropping it ends it.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    server: Arc<Mutex<Option<SocketAddr>>>,
    line: Arc<Mutex<Line>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens; `up` leads to the server, `down` back. Nothing passes before [`Relay::lead_to`].
    pub fn start(up: Path, down: Path, seed: u64) -> Self {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let line = Line { up: Link::new(up, seed), down: Link::new(down, !seed) };
        let (line, server) = (Arc::new(Mutex::new(line)), Arc::default());
        let (stop, stopped) = oneshot::channel();
        let running = Running { line: Arc::clone(&line), server: Arc::clone(&server) };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                tokio::select! {
                    () = running.run(socket) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, server, line, stop: Some(stop), thread: Some(thread) }
    }

    /// Where clients connect instead of to the server.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says where the server listens.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap() = Some(server);
    }

    /// Nothing passes from now on, either way.
    pub fn cut(&self) {
        self.set_cut(true);
    }

    /// Everything passes again.
    pub fn heal(&self) {
        self.set_cut(false);
    }

    fn set_cut(&self, is_cut: bool) {
        let mut line = self.line.lock().unwrap();
        line.up.set_cut(is_cut);
        line.down.set_cut(is_cut);
    }

    /// What happened to datagrams to the server, and from it.
    pub fn counts(&self) -> (Counts, Counts) {
        let line = self.line.lock().unwrap();
        (line.up.counts(), line.down.counts())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed by then.
            let _ = thread.join();
        }
    }
}

struct Running {
    line: Arc<Mutex<Line>>,
    server: Arc<Mutex<Option<SocketAddr>>>,
}

impl Running {
    async fn run(self, socket: std::net::UdpSocket) {
        let socket = UdpSocket::from_std(socket).unwrap();
        let (inbox, mut answers) = mpsc::channel::<Datagram>(INBOX);
        let mut callers: Vec<(SocketAddr, Arc<UdpSocket>)> = Vec::new();
        let mut bytes = vec![0; DATAGRAM_BYTES_MAX];
        let start = Instant::now();
        loop {
            let next = self.deliver(start.elapsed(), &socket, &callers).await;
            tokio::select! {
                got = socket.recv_from(&mut bytes) => {
                    // Loopback reports a peer's closed port as an error of the next call.
                    let Ok((len, from)) = got else { continue };
                    let Some(caller) = self.caller(&mut callers, from, &inbox).await else { continue };
                    let datagram = (caller, bytes[..len].to_vec());
                    self.line.lock().unwrap().up.take(start.elapsed(), len, datagram);
                }
                Some(datagram) = answers.recv() => {
                    let len = datagram.1.len();
                    self.line.lock().unwrap().down.take(start.elapsed(), len, datagram);
                }
                () = sleep_until(start + next.unwrap_or_default()), if next.is_some() => {}
            }
        }
    }

    /// Sends what has arrived by `now`; says when the next does.
    async fn deliver(
        &self,
        now: Duration,
        socket: &UdpSocket,
        callers: &[(SocketAddr, Arc<UdpSocket>)],
    ) -> Option<Duration> {
        loop {
            let (up, down) = {
                let mut line = self.line.lock().unwrap();
                (line.up.poll(now), line.down.poll(now))
            };
            if up.is_none() && down.is_none() {
                let line = self.line.lock().unwrap();
                return line.up.next_at().into_iter().chain(line.down.next_at()).min();
            }
            // A peer that is gone takes nothing: that is loss.
            if let Some((caller, bytes)) = up {
                drop(callers[caller].1.send(&bytes).await);
            }
            if let Some((caller, bytes)) = down {
                drop(socket.send_to(&bytes, callers[caller].0).await);
            }
        }
    }

    /// The number of the caller at `from`; a new one gets a socket towards the server.
    async fn caller(
        &self,
        callers: &mut Vec<(SocketAddr, Arc<UdpSocket>)>,
        from: SocketAddr,
        inbox: &mpsc::Sender<Datagram>,
    ) -> Option<usize> {
        if let Some(known) = callers.iter().position(|(address, _)| *address == from) {
            return Some(known);
        }
        let server = (*self.server.lock().unwrap())?;
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        socket.connect(server).await.unwrap();
        let number = callers.len();
        callers.push((from, Arc::clone(&socket)));
        let inbox = inbox.clone();
        tokio::spawn(async move {
            let mut bytes = vec![0; DATAGRAM_BYTES_MAX];
            loop {
                let Ok(len) = socket.recv(&mut bytes).await else { continue };
                if inbox.send((number, bytes[..len].to_vec())).await.is_err() {
                    return;
                }
            }
        });
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PAYLOAD: usize = 1222;

    /// Sends `count` numbered datagrams, one every `gap`; gives numbers and times of arrival.
    fn through(path: Path, seed: u64, count: u32, gap: Duration) -> (Vec<(u32, Duration)>, Counts) {
        let mut link = Link::new(path, seed);
        (0..count).for_each(|number| link.take(gap * number, PAYLOAD, number));
        let mut arrived = Vec::new();
        while let Some(now) = link.next_at() {
            arrived.extend(link.poll(now).map(|number| (number, now)));
        }
        (arrived, link.counts())
    }

    #[test]
    fn a_plain_link_hands_everything_on_in_order_after_its_delay() {
        let path = Path { delay: 25 * MS, jitter: 10 * MS, ..Path::default() };
        let (arrived, _) = through(path, 1, 10_000, 2 * MS);
        assert!(arrived.iter().map(|(number, _)| *number).eq(0..10_000));
        assert!(arrived.is_sorted_by_key(|(_, at)| *at));
        let waits = arrived.iter().map(|(number, at)| *at - 2 * MS * *number);
        assert!(waits.clone().all(|wait| (25 * MS..=35 * MS).contains(&wait)));
        assert!(waits.clone().max() > waits.min().map(|least| least + 5 * MS));
    }

    #[test]
    fn the_share_that_is_lost_or_doubled_is_the_one_asked_for() {
        let path = Path { loss: 0.1, duplicate: 0.05, ..Path::default() };
        let (arrived, counts) = through(path, 2, 100_000, MS);
        // Five standard deviations of a binomial.
        assert!(counts.lost.abs_diff(10_000) < 475, "{counts:?}");
        assert!(counts.duplicated.abs_diff(4_500) < 327, "{counts:?}");
        assert_eq!(arrived.len() as u64, 100_000 - counts.lost + counts.duplicated);
    }

    #[test]
    fn reordering_moves_some_back_and_loses_none() {
        let path = Path { reorder: 0.1, ..Path::default() };
        let (arrived, counts) = through(path, 3, 10_000, MS);
        let mut numbers: Vec<_> = arrived.iter().map(|(number, _)| *number).collect();
        let early = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!(early > 500, "{early} of {counts:?} came before an earlier one");
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..10_000));
    }

    #[test]
    fn the_line_carries_its_rate_and_drops_what_does_not_fit_its_queue() {
        // 12.5 Mbit/s come, 10 leave.
        let path = Path { megabits: Some(10.0), queue_bytes: 50_000, ..Path::default() };
        let (arrived, counts) = through(path, 4, 20_000, MS * 8 / 10);
        let (first, last) = (arrived[0].1, arrived.last().unwrap().1);
        let bits = (arrived.len() - 1) as f64 * 8.0 * (PAYLOAD + HEADER_BYTES) as f64;
        let rate = bits / (last - first).as_secs_f64() / 1e6;
        assert!((9.9..10.1).contains(&rate), "{rate} Mbit/s");
        assert!((0.19..0.21).contains(&(counts.overflowed as f64 / 20_000.0)), "{counts:?}");
        // The queue of 50 kB is 40 ms.
        let longest = arrived.iter().map(|(number, at)| *at - MS * 8 / 10 * *number).max();
        assert!((38 * MS..=40 * MS).contains(&longest.unwrap()), "{longest:?}");
    }

    #[test]
    fn a_cut_link_carries_nothing_until_it_is_healed() {
        let mut link = Link::new(Path { delay: MS, ..Path::default() }, 5);
        link.take(MS, 1, "on its way");
        link.set_cut(true);
        link.take(MS, 1, "cut");
        link.set_cut(false);
        link.take(MS, 1, "healed");
        assert_eq!((link.poll(MS), link.poll(2 * MS)), (None, Some("healed")));
        assert_eq!((link.poll(9 * MS), link.counts().cut), (None, 2));
    }

    #[test]
    fn the_same_seed_treats_the_same_datagrams_alike() {
        let path = Path { loss: 0.1, reorder: 0.1, duplicate: 0.1, jitter: MS, ..Path::default() };
        assert_eq!(through(path, 6, 1000, MS), through(path, 6, 1000, MS));
        assert_ne!(through(path, 6, 1000, MS), through(path, 7, 1000, MS));
    }

    #[test]
    fn two_callers_get_their_own_answers_through_real_sockets() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(Path::default(), Path::default(), 8);
        relay.lead_to(server.local_addr().unwrap());
        let callers = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        for socket in callers.iter().chain([&server]) {
            socket.set_read_timeout(Some(crate::cluster::PATIENCE)).unwrap();
        }
        let mut bytes = [0; 8];
        for (caller, word) in callers.iter().zip([b"one", b"two"]) {
            caller.send_to(word, relay.address()).unwrap();
            let (len, from) = server.recv_from(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], word);
            server.send_to(word, from).unwrap();
        }
        for (caller, word) in callers.iter().zip([b"one", b"two"]) {
            let (len, from) = caller.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..len], from), (&word[..], relay.address()));
        }
        assert_eq!((relay.counts().0.taken, relay.counts().1.taken), (2, 2));
    }
}
