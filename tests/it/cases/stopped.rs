//! A job of raw clients that is stopped: waits end, and the model is kept.

use super::*;

/// One client waits at a barrier, the other for the first one's push: neither would ever return. The
/// coordinator is asked to end; both get the same typed error, leave, and the job ends well.
#[test]
fn a_stop_ends_the_waits_of_raw_clients_and_keeps_the_model() {
    let mut case = Case::new(&job("mode = \"bsp\"", 2, 2, SGD), 2);
    let init = || Op::Init(vec![declared("x", &[2], Dtype::F32, 1.0)]);
    case.client(0, vec![init(), Op::Barrier.fails(), pull(&["x"]).fails()]);
    case.client(1, vec![init(), Op::PushPull(filled(&["x"], 0.5), 1).fails()]);
    let coordinator = case.cluster.coordinator_id();
    case.cluster.wait_for_line(coordinator, "training begins");
    case.cluster.signal(coordinator, "TERM");
    let ending = case.finish();
    for (seat, failures) in [(0, 2), (1, 1)] {
        let said = ending.failures(seat);
        assert_eq!(said.len(), failures);
        for (kind, text) in said {
            assert_eq!(kind, "Stopping");
            assert!(text.contains("the job was stopped: leave"), "{text}");
        }
    }
    assert!(ending.summary["reason"].as_str().unwrap().contains("stopped by"));
}
