#![no_main]

use slackline_common::wire::control::{
    FromOperator, FromServer, FromWorker, ToOperator, ToServer, ToWorker,
};
use slackline_common::wire::message;

// No message panics or allocates beyond the limit; the fuzzer itself watches the memory.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    drop(message::decode::<FromWorker>(data));
    drop(message::decode::<ToWorker>(data));
    drop(message::decode::<FromServer>(data));
    drop(message::decode::<ToServer>(data));
    drop(message::decode::<FromOperator>(data));
    drop(message::decode::<ToOperator>(data));
});
