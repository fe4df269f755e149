//! Every bound in the system, by name. A queue without a bound is a memory leak with a schedule.

/// Largest number of elements in one block: 1 MiB of `f32`. The unit of placement and coding.
pub const BLOCK_ELEMENTS_MAX: usize = 256 << 10;
/// Smallest block length the layout chooses for a model that has more than one block.
pub const BLOCK_ELEMENTS_MIN: usize = 256;
/// A layout is cut into about this many blocks (between the two bounds above), whatever the number
/// of servers: fine enough for 5 % balance, coarse enough that a block's 12-byte entry is noise.
pub const BLOCKS_PER_LAYOUT_TARGET: usize = 128;

/// Largest body of one data frame. A sender closes a frame before the block that would exceed it;
/// one block always fits (1 MiB of `f32` and its codec header).
pub const FRAME_BODY_BYTES_MAX: usize = BLOCK_ELEMENTS_MAX * 4 + 4096;
/// Most blocks in one data frame.
pub const FRAME_BLOCKS_MAX: usize = 4096;
/// Data frames one connection may have unanswered. 32 frames × 1 MiB = 32 MiB per worker and server.
pub const FRAMES_IN_FLIGHT_MAX: usize = 32;
/// Largest control message, a layout with its names included.
pub const CONTROL_BYTES_MAX: usize = 8 << 20;
/// Control messages waiting for one member before it is cut off as stuck.
pub const CONTROL_QUEUE_MAX: usize = 1024;
/// Frames waiting for one shard; senders are held back beyond it.
pub const SHARD_QUEUE_MAX: usize = 256;

/// Most seats in a job.
pub const SEATS_MAX: usize = 1024;
/// Most server processes in a job.
pub const SERVERS_MAX: usize = 256;
/// Most shards one server may run.
pub const SHARDS_PER_SERVER_MAX: usize = 16;
/// Most tensors in a layout.
pub const TENSORS_MAX: usize = 65_536;
/// Longest tensor name in bytes.
pub const TENSOR_NAME_BYTES_MAX: usize = 256;
/// Most dimensions of a tensor.
pub const TENSOR_DIMENSIONS_MAX: usize = 8;
/// Most elements in a layout: 2³⁴ (64 GiB of `f32`) keeps every byte count inside 64 bits with room.
pub const LAYOUT_ELEMENTS_MAX: u64 = 1 << 34;
/// Most batches of one lease.
pub const LEASE_BATCHES_MAX: u32 = 1 << 20;
/// Most samples one push may declare.
pub const PUSH_SAMPLES_MAX: u32 = 1 << 24;
/// Largest staleness bound a job may set.
pub const STALENESS_MAX: u64 = 1 << 20;
/// Most rules of a job about how tensors are coded.
pub const COMPRESS_RULES_MAX: usize = 256;
/// Most local steps of a round.
pub const LOCAL_STEPS_MAX: u32 = 65_536;
/// Largest file a config or job may be.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Most connections one endpoint keeps before it refuses new ones.
pub const CONNECTIONS_MAX: usize = 2048;
/// Seconds a peer has to send its hello after it connected; a silent one is closed after them.
pub const HELLO_SECONDS_MAX: u64 = 5;

/// Largest single size (width, channels, classes) in a model description.
pub const MODEL_SIZE_MAX: u32 = 1 << 20;
/// Most layers a model description may ask for: 1,024 × 12 tensors stay below [`TENSORS_MAX`].
pub const MODEL_LAYERS_MAX: u32 = 1024;
/// Most elements of one input: 64 MiB of `f32`.
pub const SAMPLE_ELEMENTS_MAX: u64 = 1 << 24;
/// Longest context of a transformer: 256 MiB of attention weights per sample and head.
pub const TRANSFORMER_CONTEXT_MAX: u32 = 8192;
/// Most passes over the data a job may ask for.
pub const EPOCHS_MAX: u64 = 1 << 24;
/// Most steps a job or a schedule may name: at a thousand a second they last 34 years.
pub const STEPS_MAX: u64 = 1 << 40;
/// Largest data file on a worker, unpacked: what it holds is kept in memory.
pub const DATA_FILE_BYTES_MAX: u64 = 16 << 30;
/// Longest header of a NumPy array; a real one has about 100 bytes.
pub const NPY_HEADER_BYTES_MAX: usize = 64 << 10;
/// Batches a worker orders ahead from its data thread. A lease may have more: order as they are taken.
pub const BATCH_ORDERS_MAX: usize = 256;
/// Batches the data thread fills ahead of the computation: one being taken, the next ready, one spare
/// for a slow read.
pub const PREFETCH_BATCHES: usize = 3;

/// Steps of one seat that a shard keeps open at once, however far the mode lets it run ahead: streams
/// reorder, so a step may arrive before the one before it is complete.
pub const STEPS_OPEN_MAX: u64 = 32;
/// Pulls of one seat that may wait in one shard; twice what one connection can ask, so that a seat
/// that reconnects is not refused before its old pulls are cancelled.
pub const PULLS_WAITING_PER_SEAT_MAX: usize = 2 * FRAMES_IN_FLIGHT_MAX;
/// Pulls without a seat that may wait to be read in one shard: the coordinator's, and those of
/// workers that have left.
pub const PULLS_WITHOUT_SEAT_MAX: usize = 4096;
/// Encoded parameter frames one connection may have on their way out: 4 × 1 MiB per worker.
pub const REPLIES_ENCODED_PER_CONNECTION_MAX: usize = 4;
/// Idle frame buffers a server keeps for reuse: 64 MiB. In `bsp` the frames of an open step come home
/// all at once when it closes; those beyond this are given back, and their pages cost the next step
/// about as much as the copy into them.
pub const IDLE_BUFFERS_MAX: usize = 64;
/// Publishes a shard keeps for workers that are behind, beside the bound that together they are no larger
/// than its parameters in `f32`: a worker that missed more gets all of them.
pub const PUBLISHES_KEPT_MAX: usize = 4096;
/// Seconds a peer has to send one frame, or to take one reply: 1 MiB in 60 s is 140 kbit/s. A slower
/// one is cut, so that a trickle cannot hold a buffer for ever.
pub const FRAME_SECONDS_MAX: u64 = 60;

/// Most bytes a peer may send ahead of what is read, per connection, on any path: 10 Gbit/s over a
/// round trip of 100 ms.
pub const RECEIVE_WINDOW_BYTES_MAX: u64 = 128 << 20;

/// Least cap on what a process sends, in 10⁶ bits per second: below it signs of life are late.
pub const EGRESS_MEGABITS_MIN: f64 = 0.1;
/// Largest cap on what a process sends: beyond it there is nothing to cap.
pub const EGRESS_MEGABITS_MAX: f64 = 1e6;

/// Longest time from one heartbeat to the next: figures that people watch are at most this old, and
/// many fit into a lease, so that a busy machine that is late with some is not taken for a lost one.
pub const HEARTBEAT_MILLIS_MAX: u64 = 500;

/// Time from one heartbeat to the next under a lease: a quarter of it, or [`HEARTBEAT_MILLIS_MAX`].
pub fn heartbeat_interval(lease: std::time::Duration) -> std::time::Duration {
    (lease / 4).min(std::time::Duration::from_millis(HEARTBEAT_MILLIS_MAX))
}
