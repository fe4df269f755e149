//! Deltas on the wire and in the log: what is shared, what a publish covers, what a replay makes.

use super::publishes::{
    ELEMENTS, View, bf16, cluster, compressed, gradient, same_bits, specs, top_k,
};
use super::*;
use crate::core::{Admission, Engine};
use slackline_common::codec::{CodecSpec, Draw, Encoder, Rounding, Select, ValueFormat};
use slackline_common::ids::Term;
use slackline_common::job::Local;
use slackline_common::random;
use slackline_common::wire::control::NO_SEAT;

const MODES: [Mode; 3] = [Mode::Bsp, Mode::Ssp { staleness: 2 }, ASP];

fn blocks(reply: &Reply) -> Vec<u32> {
    reply.blocks.iter().map(|entry| entry.block.0).collect()
}

/// The positions that a reply sends of each block.
fn sent(cluster: &Cluster, reply: &Reply) -> Vec<usize> {
    let payloads = reply.payloads();
    let count = payloads.map(|(entry, bytes)| {
        let (mut count, len) = (0, cluster.layout.blocks()[entry.block.index()].len);
        codec(entry.codec).for_each_sent(&bytes, len, &mut |_| count += 1);
        count
    });
    count.collect()
}

#[test]
fn a_publish_is_encoded_once_and_every_seat_is_sent_those_bytes() {
    let mut cluster = cluster(&compressed(job(Mode::Bsp, 2, sgd(0.1)), CodecSpec::Bf16));
    (0..2).for_each(|seat| cluster.push(seat, 0, 1, &gradient(seat.into())));
    let [one, two] = [0, 1].map(|seat| View::new(seat).pull(&mut cluster, 1).body);
    assert_eq!((one.len(), one.as_ptr()), (ELEMENTS * 2, two.as_ptr()));
    // Part of the blocks, side by side, and with a gap.
    let mut ask = |wanted: &[usize]| {
        let mut pull = View::new(0).ask(&cluster, 1);
        pull.blocks = wanted.iter().map(|at| pull.blocks[*at]).collect();
        cluster.ask(pull).body
    };
    let tail = ask(&[1, 2]);
    assert_eq!((&tail[..], tail.as_ptr()), (&one[512..], one[512..].as_ptr()));
    assert_eq!(ask(&[0, 2]), [&one[..512], &one[600..]].concat());
}

/// Every bit of a publish from the encoder alone. The draw names the job's seed, the publish, the block.
#[test]
fn a_publish_is_what_the_encoder_makes_of_the_difference() {
    for spec in specs() {
        let job = compressed(job(Mode::Bsp, 1, sgd(1.0)), spec);
        let mut cluster = cluster(&job);
        let mut view = View::new(0);
        for step in 0..4 {
            cluster.push(0, step, 1, &gradient(step));
            let parameters = cluster.pull(0, step + 1);
            let held = view.values.clone();
            let reply = view.pull(&mut cluster, step + 1);
            assert_eq!(blocks(&reply), [0, 1, 2]);
            for (entry, bytes) in reply.payloads() {
                let range = cluster.layout.blocks()[entry.block.index()].range();
                let pairs = parameters[range.clone()].iter().zip(&held[range]);
                let difference: Vec<f32> = pairs.map(|(x, r)| x - r).collect();
                let draw = Draw::down(job.seed, step + 1, entry.block);
                let mut expected = Vec::new();
                let id = Encoder::default().encode(&spec, draw, &difference, &mut expected);
                assert_eq!((id, &expected[..]), (entry.codec, &bytes[..]), "{spec} at {step}");
            }
        }
    }
}

/// Whole numbers are exact in `f32`, and what a rounding leaves of them is a whole number too.
#[test]
fn what_was_sent_and_what_is_held_back_are_the_parameters_bit_for_bit() {
    let (density, select) = (0.1, Select::Exact);
    let sparse = CodecSpec::TopK { density, select, values: ValueFormat::F32 };
    for (mode, spec) in MODES.iter().flat_map(|mode| [(*mode, CodecSpec::Bf16), (*mode, sparse)]) {
        let mut job = compressed(job(mode, 2, OptimizerSpec::Add { learning_rate: 1.0 }), spec);
        job.reduce = Reduce::Sum;
        let mut cluster = cluster(&job);
        let mut view = View::new(0);
        let mut sum = vec![1i64; ELEMENTS];
        let mut held_back = 0;
        for step in 0..8 {
            for seat in 0..2u16 {
                let draw = |i| random::hash(3, u64::from(seat) << 32 | step, i) % 8191;
                let values: Vec<_> =
                    (0..ELEMENTS as u64).map(|i| draw(i) as f32 - 4095.0).collect();
                sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum += *value as i64);
                // Already whole numbers in bf16: 8 bits.
                cluster.push(seat, step, 1, &values);
            }
            view.pull(&mut cluster, step + 1);
            let parameters = cluster.pull(0, step + 1);
            for ((sum, parameter), view) in sum.iter().zip(&parameters).zip(&view.values) {
                let residual = parameter - view;
                held_back += usize::from(residual != 0.0);
                assert_eq!((view + residual, *parameter), (*sum as f32, *sum as f32), "{spec}");
            }
        }
        assert!(held_back > 0, "{mode:?} {spec}: nothing was ever held back");
    }
}

/// DeepSpeed's two stages (E30) with both residuals, against sums in double precision: however many steps
/// are made, the seats' copy is off by one rounding of each stage. (After a start residuals are zero: a
/// seat that joins takes the reference, and owes nothing.)
#[test]
fn with_residuals_on_both_sides_the_error_does_not_grow_with_the_steps() {
    let mut cluster = cluster(&compressed(job(Mode::Bsp, 2, sgd(0.01)), CodecSpec::Bf16));
    cluster.up = CodecId::Bf16;
    let mut view = View::new(0);
    let mut residuals = [vec![0.0f32; ELEMENTS], vec![0.0f32; ELEMENTS]];
    let mut exact = vec![1.0f64; ELEMENTS];
    for step in 0..100 {
        for seat in 0..2u16 {
            let gradient = gradient(2 * step + u64::from(seat));
            let residual = &mut residuals[usize::from(seat)];
            residual.iter_mut().zip(&gradient).for_each(|(residual, g)| *residual += g);
            exact.iter_mut().zip(&gradient).for_each(|(w, g)| *w -= 0.01 * f64::from(*g) / 2.0);
            cluster.push(seat, step, 1, &residual.clone());
            let coded = |value: &mut f32| *value -= if *value == 0.0 { 0.0 } else { bf16(*value) };
            residual.iter_mut().for_each(coded);
        }
        view.pull(&mut cluster, step + 1);
        // Half of the last of 8 bits: of a gradient below 1.01, and of a change of 0.0101. The sums of
        // 100 steps in f32 are right to 100 × 2⁻²⁴.
        let bound = (0.01 + 0.0101) * 1.01 / 256.0 + 6e-6;
        for (got, exact) in view.values.iter().zip(&exact) {
            assert!((f64::from(*got) - exact).abs() <= bound, "step {step}: {got}, not {exact}");
        }
    }
}

/// `f16` ends at 65504, and a model may grow beyond every number: such a block goes in `f32`, and what is
/// finite comes back.
#[test]
fn what_a_format_cannot_hold_goes_in_single_precision() {
    let add = OptimizerSpec::Add { learning_rate: 1.0 };
    let mut cluster = cluster(&compressed(job(Mode::Bsp, 1, add), CodecSpec::F16));
    let mut view = View::new(0);
    let mut push = |step, value| {
        let mut gradient = vec![1.0; ELEMENTS];
        gradient[ELEMENTS - 1] = value;
        cluster.push(0, step, 1, &gradient);
        let reply = view.pull(&mut cluster, step + 1);
        view.assert_is_reference(&cluster, "a large number");
        assert_eq!(view.values, cluster.pull(0, step + 1));
        reply.blocks.iter().map(|entry| entry.codec).collect::<Vec<_>>()
    };
    let (f16, f32) = (CodecId::F16, CodecId::F32);
    assert_eq!(push(0, 70_000.0), [f16, f16, f32]);
    assert_eq!(push(1, -69_000.0), [f16, f16, f32]);
    assert_eq!(push(2, 1.0), [f16, f16, f16]);
    assert_eq!(push(3, 3e38), [f16, f16, f32]);
    assert_eq!(push(4, 3e38), [f16, f16, f32]);
    assert_eq!((view.values[0], view.values[ELEMENTS - 1]), (6.0, f32::INFINITY));
}

/// A push of some blocks of a step, as a fragment is.
fn push_blocks(cluster: &mut Cluster, seat: u16, step: u64, ids: &[u32], values: &[f32]) {
    let mut frame = request(RequestKind::Push, 0, seat, step);
    frame.last = true;
    let ids: Vec<_> = ids.iter().map(|id| BlockId(*id)).collect();
    cluster.fill(&mut frame, &ids, values);
    let reply = cluster.ask(frame);
    assert_eq!(reply.kind, ReplyKind::Ack, "{}", reply.sentence());
}

/// What a lossy format held back of one fragment does not travel with every publish of another; and a
/// fragment is coded as densely as a whole model would be.
#[test]
fn a_publish_of_a_fragment_does_not_pay_for_the_others() {
    let inner = sgd(0.1);
    let (begin_step, delay, mix, anchor) = (0, 0, 0.0, None);
    let local = Some(Local { steps: 4, inner, begin_step, fragments: 2, delay, mix, anchor });
    let int4 = CodecSpec::Int4 { rounding: Rounding::Nearest };
    for (mode, spec, expected) in [
        (Mode::Bsp, int4, [vec![256], vec![44, 40]]),
        (Mode::Bsp, top_k(0.2), [vec![52], vec![9, 8]]),
        // One of four workers has pushed: a quarter of the density.
        (Mode::Ssp { staleness: 4 }, top_k(0.2), [vec![13], vec![3, 2]]),
    ] {
        let mut job = compressed(job(mode, 4, sgd(1.0)), spec);
        job.local = local;
        let mut cluster = cluster(&job);
        let mut view = View::new(0);
        let seats = if mode == Mode::Bsp { 4 } else { 1 };
        for step in 0..4 {
            let fragment: &[u32] = [&[0][..], &[1, 2]][step as usize % 2];
            for seat in 0..seats {
                push_blocks(&mut cluster, seat, step, fragment, &gradient(step));
            }
            let reply = view.pull(&mut cluster, step + 1);
            assert_eq!(blocks(&reply), fragment, "{mode:?} {spec} at {step}");
            assert_eq!(sent(&cluster, &reply), expected[step as usize % 2], "{mode:?} {spec}");
        }
        view.assert_is_reference(&cluster, "fragments");
    }
}

/// Parts of one push that are published apart cost together what one publish of them does.
#[test]
fn a_push_in_parts_takes_its_share_of_the_density_once() {
    let mut cluster = cluster(&compressed(job(ASP, 2, sgd(1.0)), top_k(0.2)));
    let mut view = View::new(1);
    let mut counts = Vec::new();
    for frame in cluster.frames(0, 0, 1, &gradient(0)) {
        cluster.ask(frame);
        let reply = view.pull(&mut cluster, 0);
        counts.push((blocks(&reply), sent(&cluster, &reply)));
    }
    assert_eq!(counts, [(vec![0], vec![26]), (vec![1], vec![5]), (vec![2], vec![4])]);
}

#[test]
fn with_clipping_deltas_carry_the_norm_of_every_block_asked_for() {
    let mut job = compressed(job(Mode::Bsp, 1, sgd(1.0)), CodecSpec::Bf16);
    job.clip = Clip { per_tensor: 1000.0, global_norm: 0.0 };
    let mut cluster = cluster(&job);
    let mut view = View::new(0);
    let mut late = View::new(0);
    late.held = u64::MAX;
    assert_eq!(late.pull(&mut cluster, 0).norms, [0.0; 3]);
    cluster.push(0, 0, 1, &[vec![2.0; 300], vec![0.0; 40]].concat());
    let reply = view.pull(&mut cluster, 1);
    // A difference of zeros has no entry, and its norm is told all the same.
    assert_eq!((blocks(&reply), reply.norms), (vec![0, 1], vec![1024.0, 176.0, 0.0]));
}

#[test]
fn who_has_no_seat_may_read_deltas_too() {
    for mode in MODES {
        let mut cluster = cluster(&compressed(job(mode, 1, sgd(1.0)), CodecSpec::Sign));
        cluster.push(0, 0, 1, &gradient(0));
        let mut view = View::new(NO_SEAT.0);
        view.pull(&mut cluster, 1_000_000);
        view.assert_is_reference(&cluster, "without a seat");
        assert_eq!(view.held, 1);
    }
}

/// A shard driven by hand, with the records it was given written down.
struct Logged {
    engine: Engine,
    log: Vec<Record>,
}

impl Logged {
    fn apply(&mut self, record: Record) {
        self.engine.apply(self.log.len() as u64 + 1, &record, &mut vec![]);
        self.log.push(record);
    }

    fn follow(&mut self) {
        while let Some(record) = self.engine.poll_record() {
            self.apply(record);
        }
    }

    fn handle(&mut self, request: Request, token: Token) -> Vec<Reply> {
        if let Admission::Record(record) = self.engine.admit(request, token) {
            self.apply(record);
        }
        self.follow();
        let mut replies = Vec::new();
        while let Some(token) = self.engine.poll_release() {
            replies.extend(self.engine.read(token));
        }
        replies
    }
}

/// Trains as three seats do that pull deltas all the time, and writes down what the shard is given.
fn logged(job: &Job, engine: Engine, source: &Cluster) -> Logged {
    let mut logged = Logged { engine, log: vec![] };
    logged.apply(Record::InitFromSeed);
    let mut tokens = 0;
    let mut views = [0, 1, 2].map(View::new);
    for step in 0..4 {
        for (seat, view) in (0..job.workers).zip(&mut views) {
            let gradient = gradient(step * 3 + u64::from(seat));
            let mut frames = source.frames(seat, step, 1, &gradient);
            let mut pull = view.ask(source, step);
            pull.part = 2 + step as u32; // in auto, another wish at each step
            frames.push(pull);
            for frame in frames {
                tokens += 1;
                logged.handle(frame, Token(tokens)).iter().for_each(|reply| {
                    view.held = reply.publish; // some other seat's, it may be: a publish it is
                });
            }
        }
    }
    let depart = Record::Depart { seat: SeatId(1), incarnation: LIFE, term: Term(1) };
    logged.apply(depart);
    logged.follow();
    logged
}

/// A publish is a record, so a replay makes the same ones; and one that is read twice makes none twice.
#[test]
fn the_log_alone_gives_the_same_publishes_however_often_it_is_read() {
    for mode in MODES {
        let mut jobs = specs().map(|spec| compressed(job(mode, 3, sgd(0.1)), spec)).to_vec();
        jobs.push(Job { compress: Compress::Auto, ..job(mode, 3, sgd(0.1)) });
        for job in jobs {
            let source = cluster(&job);
            let engine = || {
                Engine::new(EngineSpec {
                    job: Arc::new(job.clone()),
                    layout: Arc::clone(&source.layout),
                    shard: ShardId(0),
                    shards: 1,
                    seats: (0..3).map(|seat| (SeatId(seat), LIFE)).collect(),
                })
            };
            let Logged { engine: live, log } = logged(&job, engine(), &source);
            let made = log.iter().filter(|record| matches!(record, Record::Publish { .. }));
            assert_eq!(made.count() > 3, mode != Mode::Bsp, "{mode:?}");
            let orders = log.iter().filter(|record| matches!(record, Record::Down { .. }));
            assert_eq!(orders.count() > 1, job.compress == Compress::Auto);
            let mut replayed = engine();
            for round in 0..2 {
                for (sequence, record) in (1..).zip(&log) {
                    replayed.apply(sequence, record, &mut vec![]);
                }
                let place = format!("{mode:?}, {:?}, reading {round}", job.compress);
                assert_eq!(replayed.state_hash(), live.state_hash(), "{place}");
                let [one, two] = [&replayed, &live].map(|engine| engine.reference().unwrap());
                assert!(one.1 == two.1 && same_bits(one.0, two.0), "{place}");
            }
        }
    }
}
