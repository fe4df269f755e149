#![no_main]

use slackline_common::config::parse_job;

// A job file is refused with sentences or read; a job that was read names the same bytes twice.
libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(job) = parse_job(text, "fuzz", &[]) {
        assert_eq!(job.hash(), job.clone().hash());
    }
});
