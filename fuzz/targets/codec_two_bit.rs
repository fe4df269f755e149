#![no_main]

use slackline_common::codec::CodecId;

libfuzzer_sys::fuzz_target!(|data: &[u8]| slackline_fuzz::check_codec(CodecId::TwoBit, data));
