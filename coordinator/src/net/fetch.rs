//! Pulls the whole model from the servers, with ordinary pull frames on their control connections.

use slackline_common::codec::{CodecId, codec};
use slackline_common::ids::{BlockId, Incarnation, ShardId, Step, Version};
use slackline_common::layout::{Block, Layout};
use slackline_common::limits::{FRAME_BLOCKS_MAX, FRAME_BODY_BYTES_MAX};
use slackline_common::placement::{Placement, server_of};
use slackline_common::quic::{Connection, describe_close_from};
use slackline_common::wire::control::NO_SEAT;
use slackline_common::wire::frame::{BlockEntry, Decoder, Reply, ReplyKind, Request, RequestKind};
use slackline_common::wire::pool::BufferPool;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Requests on their way at once: 4 MiB hide a long round trip and leave a slow line room.
const IN_FLIGHT_MAX: usize = 4;
/// How long no byte of the model may come from a server; how long the whole takes does not matter.
const STALL: Duration = Duration::from_secs(30);
/// How often one request is made while the server's connection lives.
const ATTEMPTS: u32 = 3;
/// Most bytes read from a stream at once.
const READ_BYTES_MAX: usize = 64 << 10;

/// A server's connection, and the words to name it by.
pub(super) type Source = (Connection, String);

/// The parameters as one flat vector in layout order. `servers` are in the order of their numbers.
///
/// # Errors
/// One sentence that names the server and what it did or did not do.
pub(super) async fn fetch(
    layout: &Layout,
    shards: u16,
    servers: &[Source],
) -> Result<Vec<f32>, String> {
    let count = u16::try_from(servers.len()).map_err(|_| "too many servers".to_owned())?;
    if count == 0 || shards == 0 {
        return Err("no server holds the model".to_owned());
    }
    let placement = Placement::balance(layout, shards);
    // Bytes that came from each server: its requests share a line, so one that waits for its turn
    // is not stuck while another gets on.
    let received: Vec<Arc<AtomicU64>> = servers.iter().map(|_| Arc::default()).collect();
    let mut requests = (0..shards).map(ShardId).flat_map(|shard| {
        let number = server_of(shard, count).index();
        group(layout, placement.blocks_of(shard)).into_iter().map(move |ids| (number, shard, ids))
    });
    let pool = BufferPool::new(IN_FLIGHT_MAX);
    let mut values = vec![0.0; layout.elements()];
    let mut running = JoinSet::new();
    loop {
        while running.len() < IN_FLIGHT_MAX
            && let Some((number, shard, ids)) = requests.next()
        {
            let (server, pool) = (servers[number].clone(), pool.clone());
            let received = Arc::clone(&received[number]);
            running.spawn(async move {
                let reply = pull_patiently(&server, shard, &ids, &pool, &received).await?;
                Ok::<_, String>((server.1, ids, reply))
            });
        }
        let Some(done) = running.join_next().await else { return Ok(values) };
        let (who, ids, reply) = done.map_err(|error| format!("fetching the model: {error}"))??;
        take(layout, &ids, &reply, &mut values).map_err(|what| format!("{who} {what}"))?;
    }
}

/// Cuts a shard's blocks into requests whose replies fit a frame.
fn group(layout: &Layout, blocks: &[BlockId]) -> Vec<Vec<BlockId>> {
    let mut groups: Vec<Vec<BlockId>> = Vec::new();
    let mut room = 0;
    for id in blocks {
        let bytes = layout.blocks()[id.index()].len * 4;
        match groups.last_mut().filter(|last| bytes <= room && last.len() < FRAME_BLOCKS_MAX) {
            Some(last) => last.push(*id),
            None => {
                groups.push(vec![*id]);
                room = FRAME_BODY_BYTES_MAX;
            }
        }
        room -= bytes;
    }
    groups
}

/// Pulls, and again when that failed for a reason of the moment.
async fn pull_patiently(
    server: &Source,
    shard: ShardId,
    ids: &[BlockId],
    pool: &BufferPool,
    received: &AtomicU64,
) -> Result<Reply, String> {
    let (connection, who) = server;
    let mut attempt = 1;
    loop {
        let reply = unless_stalled(received, STALL, pull(server, shard, ids, pool, received)).await;
        let fault = match reply {
            Some(Ok(reply)) => return Ok(reply),
            Some(Err(fault)) => fault,
            None => format!("{who} has sent nothing of the model for {} s", STALL.as_secs()),
        };
        if attempt == ATTEMPTS || connection.close_reason().is_some() {
            return Err(fault);
        }
        tracing::warn!("{fault}; asking again");
        attempt += 1;
    }
}

/// Waits for `what`, for as long as `received` grows within every `stall`; none when it does not.
async fn unless_stalled<T>(
    received: &AtomicU64,
    stall: Duration,
    what: impl Future<Output = T>,
) -> Option<T> {
    let mut what = pin!(what);
    loop {
        let before = received.load(Ordering::Relaxed);
        match timeout(stall, &mut what).await {
            Ok(done) => return Some(done),
            Err(_) if received.load(Ordering::Relaxed) > before => {}
            Err(_) => return None,
        }
    }
}

async fn pull(
    (connection, who): &Source,
    shard: ShardId,
    ids: &[BlockId],
    pool: &BufferPool,
    received: &AtomicU64,
) -> Result<Reply, String> {
    let lost = |error: quinn::ConnectionError| describe_close_from(who, &error).to_string();
    let broken = |what: String| format!("{who}: {what}");
    let (mut send, mut receive) = connection.open_bi().await.map_err(lost)?;
    let entry = |block: &BlockId| BlockEntry::new(*block, 0, CodecId::F32);
    let request = Request {
        kind: RequestKind::Pull,
        last: false,
        shard,
        seat: NO_SEAT,
        incarnation: Incarnation(0),
        step: Step(0),
        version: Version(0),
        samples: 0,
        part: 0,
        norms: Vec::new(),
        blocks: ids.iter().map(entry).collect(),
        body: bytes::Bytes::new(),
    };
    send.write_all(&request.encode_head()).await.map_err(|error| broken(error.to_string()))?;
    send.finish().map_err(|error| broken(error.to_string()))?;
    let mut decoder = Decoder::<Reply>::new(pool);
    while let Some(chunk) =
        receive.read_chunk(READ_BYTES_MAX, true).await.map_err(|error| broken(error.to_string()))?
    {
        received.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
        decoder.handle_bytes(&chunk.bytes).map_err(|error| broken(error.to_string()))?;
    }
    decoder.finish().map_err(|error| broken(error.to_string()))
}

/// Puts a reply's blocks in their places.
fn take(layout: &Layout, ids: &[BlockId], reply: &Reply, values: &mut [f32]) -> Result<(), String> {
    match reply.kind {
        ReplyKind::Parameters => {}
        ReplyKind::Refused => return Err(format!("refuses the model: {}", reply.sentence())),
        ReplyKind::Ack | ReplyKind::Deltas | ReplyKind::Reference => {
            return Err("answers a pull of whole values with something else".to_owned());
        }
    }
    if !reply.blocks.iter().map(|entry| &entry.block).eq(ids) {
        return Err(format!("sent {} blocks, not the {} asked for", reply.blocks.len(), ids.len()));
    }
    for (entry, bytes) in reply.payloads() {
        let block: &Block = &layout.blocks()[entry.block.index()];
        codec(entry.codec)
            .decode(&bytes, &mut values[block.range()])
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_common::layout::{Init, TensorSpec};
    use std::task::Poll;

    #[tokio::test]
    async fn a_transfer_may_take_long_while_bytes_come_and_ends_when_none_do() {
        // A stall of no time at all: every wait is over at once, and only growth keeps it going.
        let received = AtomicU64::new(0);
        let mut left = 100;
        let slow = std::future::poll_fn(|context| {
            received.fetch_add(1, Ordering::Relaxed);
            context.waker().wake_by_ref();
            left -= 1;
            if left == 0 { Poll::Ready("whole") } else { Poll::Pending }
        });
        assert_eq!(unless_stalled(&received, Duration::ZERO, slow).await, Some("whole"));
        let stuck = std::future::pending::<()>();
        assert_eq!(unless_stalled(&received, Duration::ZERO, stuck).await, None);
    }

    #[test]
    fn every_block_is_asked_for_once_and_no_reply_exceeds_a_frame() {
        for shape in [vec![3u64], vec![600, 1000], vec![3 << 20]] {
            let tensors = [("a", shape), ("b", vec![7])];
            let tensors =
                tensors.map(|(name, shape)| TensorSpec::parameter(name, &shape, Init::Zeros));
            let layout = Layout::new(tensors.to_vec()).unwrap();
            let all: Vec<BlockId> = layout.blocks().iter().map(|block| block.id).collect();
            let groups = group(&layout, &all);
            assert_eq!(groups.concat(), all);
            for ids in groups {
                let elements: usize = ids.iter().map(|id| layout.blocks()[id.index()].len).sum();
                assert!(elements * 4 <= FRAME_BODY_BYTES_MAX && ids.len() <= FRAME_BLOCKS_MAX);
            }
        }
    }
}
