#![no_main]

use slackline_common::wire::frame::{Decoder, Request};
use slackline_common::wire::pool::BufferPool;

// What is read is written again as the same bytes.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut decoder = Decoder::<Request>::new(&BufferPool::new(1));
    if decoder.handle_bytes(data).is_err() {
        return;
    }
    if let Ok(request) = decoder.finish() {
        assert_eq!([request.encode_head(), request.body.to_vec()].concat(), data);
    }
});
