//! Who lives where: shard number → its thread. The only file that names `DashMap`.
//!
//! A guard of the map is a lock, so guards never leave this file: closures look, and what is needed
//! longer is cloned inside them.

use crate::shard::ShardHandle;
use dashmap::DashMap;
use slackline_common::ids::ShardId;

/// The shards of this server.
#[derive(Debug, Default)]
pub struct Directory {
    shards: DashMap<ShardId, ShardHandle>,
}

impl Directory {
    /// Looks at one shard. `look` must not call back into the directory.
    pub fn with<T>(&self, shard: ShardId, look: impl FnOnce(&ShardHandle) -> T) -> Option<T> {
        self.shards.get(&shard).map(|handle| look(&handle))
    }

    /// Adds a shard, or replaces it.
    pub fn insert(&self, shard: ShardId, handle: ShardHandle) {
        self.shards.insert(shard, handle);
    }

    /// Every shard, in the order of their numbers.
    pub fn all(&self) -> Vec<ShardHandle> {
        let mut all: Vec<_> =
            self.shards.iter().map(|entry| (*entry.key(), entry.value().clone())).collect();
        all.sort_by_key(|(shard, _)| *shard);
        all.into_iter().map(|(_, handle)| handle).collect()
    }

    /// Forgets every shard: their threads end when nobody holds a handle any more.
    pub fn clear(&self) {
        self.shards.clear();
    }
}
