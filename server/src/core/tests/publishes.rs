//! Deltas: what workers hold, how they learn of changes, and what a publish holds back.

use super::*;
use slackline_common::codec::{CodecSpec, Rounding, Select, ValueFormat};
use slackline_common::job::{AnchorPull, CompressRule, Direction, LADDER, Local};
use slackline_common::random;

/// Blocks of 256, 44 and 40 elements.
const SHAPES: [&[u64]; 2] = [&[300], &[40]];
pub(super) const ELEMENTS: usize = 340;

pub(super) fn compressed(mut job: Job, codec: CodecSpec) -> Job {
    let direction = Direction::Both;
    job.compress = Compress::Rules(vec![CompressRule {
        pattern: "*".to_owned(),
        direction,
        elements_min: 0,
        codec,
    }]);
    job
}

pub(super) const fn top_k(density: f32) -> CodecSpec {
    CodecSpec::TopK { density, select: Select::Exact, values: ValueFormat::Bf16 }
}

pub(super) fn specs() -> [CodecSpec; 6] {
    [
        CodecSpec::Bf16,
        CodecSpec::Int8 { rounding: Rounding::Stochastic },
        CodecSpec::Int4 { rounding: Rounding::Nearest },
        CodecSpec::Sign,
        top_k(0.05),
        CodecSpec::RandomK { density: 0.1, values: ValueFormat::F32 },
    ]
}

pub(super) fn cluster(job: &Job) -> Cluster {
    Cluster::new(job, &layout(&SHAPES, Init::Ones), 1)
}

pub(super) fn gradient(stream: u64) -> Vec<f32> {
    (0..ELEMENTS).map(|at| random::symmetric_unit(3, stream, at as u64)).collect()
}

/// A worker that holds what was published up to some point.
pub(super) struct View {
    pub(super) seat: u16,
    pub(super) held: u64,
    pub(super) values: Vec<f32>,
}

impl View {
    /// With the first values, which every worker makes by itself.
    pub(super) fn new(seat: u16) -> Self {
        Self { seat, held: 0, values: vec![1.0; ELEMENTS] }
    }

    pub(super) fn ask(&self, cluster: &Cluster, step: u64) -> Request {
        let mut request = request(RequestKind::PullDeltas, 0, self.seat, step);
        request.version = Version(self.held);
        request.blocks = cluster.wanted(0, CodecId::F32);
        request
    }

    pub(super) fn pull(&mut self, cluster: &mut Cluster, step: u64) -> Reply {
        let reply = cluster.ask(self.ask(cluster, step));
        self.take(cluster, &reply);
        reply
    }

    pub(super) fn take(&mut self, cluster: &Cluster, reply: &Reply) {
        for (entry, bytes) in reply.payloads() {
            let out = &mut self.values[cluster.layout.blocks()[entry.block.index()].range()];
            let format = codec(entry.codec);
            match reply.kind {
                ReplyKind::Deltas => format.decode_add(&bytes, 1.0, out).unwrap(),
                ReplyKind::Reference => format.decode(&bytes, out).unwrap(),
                _ => panic!("{}", reply.sentence()),
            }
        }
        self.held = reply.publish;
    }

    pub(super) fn assert_is_reference(&self, cluster: &Cluster, place: &str) {
        let (reference, publish) = cluster.shards[0].engine().reference().unwrap();
        assert_eq!(self.held, publish, "{place}");
        assert!(same_bits(&self.values, reference), "{place}");
    }
}

pub(super) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|value| value.to_bits()).eq(b.iter().map(|value| value.to_bits()))
}

/// To the nearest number with a mantissa of 8 bits, by arithmetic.
pub(super) fn bf16(value: f32) -> f32 {
    let unit = 2f32.powi(value.abs().log2().floor() as i32 - 7);
    (value / unit).round_ties_even() * unit
}

#[test]
fn whoever_is_at_a_publish_holds_the_same_bits_however_it_came_there() {
    for spec in specs() {
        for mode in [Mode::Bsp, Mode::Ssp { staleness: 3 }, ASP] {
            let job = compressed(job(mode, 2, sgd(0.1)), spec);
            let mut cluster = cluster(&job);
            let (mut eager, mut lazy) = (View::new(0), View::new(1));
            for step in 0..6 {
                for seat in 0..2 {
                    cluster.push(seat, step, 1, &gradient(step * 2 + u64::from(seat)));
                }
                eager.pull(&mut cluster, step + 1);
                eager.assert_is_reference(&cluster, &format!("{spec}, {mode:?}, step {step}"));
            }
            lazy.pull(&mut cluster, 6);
            let mut late = View::new(0);
            (late.held, late.values) = (u64::MAX, vec![f32::NAN; ELEMENTS]);
            let reply = late.pull(&mut cluster, 6);
            assert_eq!(reply.kind, ReplyKind::Reference);
            let place = format!("{spec}, {mode:?}");
            lazy.assert_is_reference(&cluster, &place);
            late.assert_is_reference(&cluster, &place);
        }
    }
}

/// What a publish leaves out is in the next: once pushes are zero, what workers hold comes to the
/// parameters.
#[test]
fn nothing_that_is_held_back_is_lost() {
    for spec in specs().into_iter().filter(|spec| *spec != CodecSpec::Sign) {
        let job = compressed(job(Mode::Bsp, 1, sgd(1.0)), spec);
        let mut cluster = cluster(&job);
        let mut view = View::new(0);
        cluster.push(0, 0, 1, &gradient(9));
        for step in 1..200 {
            cluster.push(0, step, 1, &[0.0; ELEMENTS]);
        }
        view.pull(&mut cluster, 200);
        let parameters = cluster.pull(0, 200);
        let off = view.values.iter().zip(&parameters).map(|(a, b)| (a - b).abs());
        let off = off.fold(0.0, f32::max);
        assert!(off <= 1e-6, "{spec}: {off}");
    }
}

/// Two stages of compression (DeepSpeed's test, E30; BytePS' E25 is the same with one worker): a worker
/// codes its gradient and keeps the rest, the server sums, codes again and keeps the rest. Held against
/// the same arithmetic without frames. Ours codes the change of the parameters and not the mean of the
/// gradients, so that workers that miss a publish stay right.
#[test]
fn two_stages_follow_a_model_in_one_process() {
    for spec in [CodecSpec::Sign, CodecSpec::Int4 { rounding: Rounding::Nearest }, top_k(0.1)] {
        let job = compressed(job(Mode::Bsp, 1, sgd(0.01)), spec);
        let mut cluster = cluster(&job);
        let mut view = View::new(0);
        let (mut x, mut r) = (vec![1.0f32; ELEMENTS], vec![1.0f32; ELEMENTS]);
        for step in 0..20 {
            // Any numbers do for what a worker has coded already.
            let sent = gradient(step);
            cluster.push(0, step, 1, &sent);
            view.pull(&mut cluster, step + 1);
            for range in [0..256, 256..300, 300..340] {
                x[range.clone()]
                    .iter_mut()
                    .zip(&sent[range.clone()])
                    .for_each(|(x, g)| *x -= 0.01 * g);
                let difference: Vec<f32> =
                    x[range.clone()].iter().zip(&r[range.clone()]).map(|(x, r)| x - r).collect();
                let scale = f64::from(difference.iter().map(|d| d.abs()).fold(0.0, f32::max));
                let mean = difference.iter().map(|d| f64::from(d.abs())).sum::<f64>()
                    / difference.len() as f64;
                let mut order: Vec<usize> = (0..difference.len()).collect();
                order.sort_by(|a, b| difference[*b].abs().total_cmp(&difference[*a].abs()));
                let chosen = &order[..difference.len() / 10];
                for (at, (r, d)) in r[range].iter_mut().zip(&difference).enumerate() {
                    let coded = match spec {
                        CodecSpec::Sign => {
                            if *d < 0.0 {
                                -mean
                            } else {
                                mean
                            }
                        }
                        CodecSpec::Int4 { .. } => {
                            (f64::from(*d) * 7.0 / scale).round_ties_even() * scale / 7.0
                        }
                        _ if chosen.contains(&at) => f64::from(bf16(*d)),
                        _ => 0.0,
                    };
                    *r = (f64::from(*r) + coded) as f32;
                }
            }
            // A level may tip where a quotient lies on the border: leave those out.
            let near = view.values.iter().zip(&r).filter(|(a, b)| (*a - *b).abs() <= 1e-6).count();
            assert!(near >= ELEMENTS - 3, "{spec}, step {step}: {near} of {ELEMENTS} agree");
            (x, r) = (cluster.pull(0, step + 1), view.values.clone());
        }
    }
}

#[test]
fn an_arrival_is_published_before_a_pull_that_would_see_it_and_only_then() {
    let job = compressed(job(ASP, 2, sgd(0.1)), CodecSpec::Bf16);
    let mut cluster = cluster(&job);
    let mut view = View::new(0);
    let number = |cluster: &Cluster| cluster.shards[0].engine().reference().unwrap().1;
    cluster.push(0, 0, 1, &gradient(0));
    cluster.push(1, 0, 1, &gradient(1));
    assert_eq!(number(&cluster), 0);
    view.pull(&mut cluster, 1);
    assert_eq!(number(&cluster), 1);
    let again = view.pull(&mut cluster, 1);
    assert_eq!((number(&cluster), again.kind, again.blocks.len()), (1, ReplyKind::Deltas, 0));
    cluster.pull(0, 1);
    assert_eq!(number(&cluster), 1, "a pull of whole parameters publishes nothing");
}

/// Sparse publishes cost what was applied: two of half a global step send as many elements as one.
#[test]
fn bytes_down_do_not_grow_with_the_number_of_publishes() {
    let sent = |workers: u16| {
        let job = compressed(job(ASP, workers, sgd(0.1)), top_k(0.2));
        let mut cluster = cluster(&job);
        let mut view = View::new(0);
        let mut elements = 0;
        for step in 0..workers {
            cluster.push(step, 0, 1, &gradient(step.into()));
            let reply = view.pull(&mut cluster, u64::from(step == 0));
            assert_eq!(reply.kind, ReplyKind::Deltas);
            for (entry, bytes) in reply.payloads() {
                let len = cluster.layout.blocks()[entry.block.index()].len;
                codec(entry.codec).for_each_sent(&bytes, len, &mut |_| elements += 1);
            }
        }
        elements
    };
    // A fifth of each of three blocks, rounded up: in one go, or a twentieth four times.
    assert_eq!((sent(1), sent(4)), (52 + 9 + 8, 4 * (13 + 3 + 2)));
}

#[test]
fn who_missed_too_much_gets_everything() {
    let job =
        compressed(job(Mode::Bsp, 1, sgd(0.1)), CodecSpec::Int8 { rounding: Rounding::Nearest });
    let mut cluster = cluster(&job);
    let (mut near, mut far) = (View::new(0), View::new(0));
    for step in 0..10 {
        cluster.push(0, step, 1, &gradient(step));
        if step < 8 {
            near.pull(&mut cluster, step + 1);
        }
    }
    assert_eq!(near.pull(&mut cluster, 10).kind, ReplyKind::Deltas);
    assert_eq!(far.pull(&mut cluster, 10).kind, ReplyKind::Reference);
    near.assert_is_reference(&cluster, "two publishes at once");
    far.assert_is_reference(&cluster, "all at once");
}

#[test]
fn pulls_that_make_no_sense_are_refused() {
    let plain = job(Mode::Bsp, 1, sgd(0.1));
    let mut without = cluster(&plain);
    let ask = View::new(0).ask(&without, 0);
    check_refused(&mut without, ask, Refusal::BadPayload, "does not send");
    let mut cluster = cluster(&compressed(plain, CodecSpec::Sign));
    let mut view = View::new(0);
    view.held = 3;
    let ask = view.ask(&cluster, 0);
    check_refused(&mut cluster, ask, Refusal::BadPayload, "publish 3, but 0 is the last");
    view.held = 0;
    let mut twice = view.ask(&cluster, 0);
    twice.blocks[1] = twice.blocks[0];
    check_refused(&mut cluster, twice, Refusal::BadPayload, "blocks must rise");
    let mut lossy = request(RequestKind::Pull, 0, 0, 0);
    lossy.blocks = cluster.wanted(0, CodecId::Sign);
    check_refused(&mut cluster, lossy, Refusal::BadPayload, "whole parameters in sign");
}

#[test]
fn a_contribution_with_nan_leaves_what_workers_hold_alone() {
    let job = compressed(job(Mode::Bsp, 2, sgd(0.1)), top_k(0.1));
    let mut cluster = cluster(&job);
    let mut bad = gradient(0);
    bad[5] = f32::NAN;
    cluster.push(0, 0, 1, &bad);
    cluster.push(1, 0, 1, &gradient(1));
    let mut view = View::new(1);
    view.pull(&mut cluster, 1);
    assert!(view.values.iter().all(|value| value.is_finite()));
    view.assert_is_reference(&cluster, "after a refused contribution");
}

/// `auto`: the most compressed wish of a live seat decides, as a record.
#[test]
fn the_slowest_link_decides_how_parameters_come_down() {
    let mut job = job(Mode::Bsp, 2, sgd(0.1));
    job.compress = Compress::Auto;
    let mut cluster = cluster(&job);
    let mut views = [View::new(0), View::new(1)];
    let mut wishes = [0u32, 0];
    let mut kinds = Vec::new();
    for step in 0..4 {
        for seat in 0..2u16 {
            cluster.push(seat, step, 1, &gradient(step));
        }
        for (view, wish) in views.iter_mut().zip(&wishes) {
            let mut ask = view.ask(&cluster, step + 1);
            ask.part = *wish;
            let reply = cluster.ask(ask);
            view.take(&cluster, &reply);
            view.assert_is_reference(&cluster, "auto");
            kinds.push((reply.kind, reply.blocks.first().map(|entry| entry.codec)));
        }
        wishes = [[0, 2], [0, 2], [5000, 0], [0, 0]][usize::try_from(step).unwrap()];
    }
    let whole = (ReplyKind::Reference, Some(CodecId::F32));
    // Tensors of this size go no further than bf16 on any rung.
    let coded = (ReplyKind::Deltas, Some(CodecId::Bf16));
    assert_eq!(kinds, [whole, whole, whole, whole, coded, coded, coded, coded]);
    assert_eq!(CodecSpec::from(slackline_common::layout::Dtype::F32), LADDER[0]);
    cluster.push(0, 4, 1, &gradient(4));
    cluster.push(1, 4, 1, &gradient(4));
    let reply = views[1].pull(&mut cluster, 5);
    assert_eq!(reply.blocks[0].codec, CodecId::Bf16, "an absurd wish is the last rung");
    let farewell = request(RequestKind::Leave, 0, 0, 5);
    cluster.ask(farewell);
    cluster.push(1, 5, 1, &gradient(5));
    views[1].pull(&mut cluster, 6);
    cluster.push(1, 6, 1, &gradient(6));
    let reply = views[1].pull(&mut cluster, 7);
    assert_eq!(reply.kind, ReplyKind::Reference, "who left wishes nothing");
}

#[test]
fn steps_in_flight_may_be_pushed_ahead_and_no_further() {
    let mut job = job(Mode::Bsp, 2, sgd(0.1));
    job.in_flight = 3;
    let mut cluster = cluster(&job);
    for step in 0..3 {
        cluster.push(0, step, 1, &gradient(step));
    }
    let ahead = cluster.frames(0, 3, 1, &gradient(3)).remove(0);
    check_refused(&mut cluster, ahead, Refusal::TooFarAhead, "step 3");
    cluster.push(1, 0, 1, &gradient(0));
    cluster.push(0, 3, 1, &gradient(3));
    assert_eq!(cluster.version(0), 1, "a pull of step 1 is answered with one closed step");
}

/// Paddle's momentum for deep gradient compression (E34): before the ramp `v = μv + g/W, w -= lr·v`,
/// after it plain `w -= lr·g/W`.
#[test]
fn with_momentum_correction_the_server_is_plain_once_the_ramp_begins() {
    let (rate, momentum) = (0.5f32, 0.9f32);
    let optimizer = OptimizerSpec::Momentum {
        learning_rate: rate,
        momentum,
        weight_decay: 0.0,
        nesterov: false,
    };
    let mut job = job(Mode::Bsp, 2, optimizer);
    job.feedback.momentum_correction = true;
    job.ramp = Ramp { begin_step: 3, steps: 0, from: 0.25 };
    let mut cluster = cluster(&job);
    let (mut w, mut v) = (vec![1.0f32; ELEMENTS], vec![0.0f32; ELEMENTS]);
    for step in 0..6 {
        let pushes = [gradient(2 * step), gradient(2 * step + 1)];
        cluster.push(0, step, 1, &pushes[0]);
        cluster.push(1, step, 1, &pushes[1]);
        for at in 0..ELEMENTS {
            let g = (pushes[0][at] + pushes[1][at]) / 2.0;
            v[at] = if step < 3 { momentum * v[at] + g } else { g };
            w[at] -= rate * v[at];
        }
    }
    let got = cluster.pull(0, 6);
    assert!(got.iter().zip(&w).all(|(got, w)| (got - w).abs() <= 1e-5));
}

#[test]
fn in_local_mode_rounds_count_alike_and_the_schedule_is_the_workers() {
    let mut job = job(Mode::Ssp { staleness: 2 }, 4, sgd(1.0));
    job.schedule.warmup_steps = 1000;
    job.local = Some(Local {
        steps: 8,
        inner: sgd(0.1),
        begin_step: 0,
        fragments: 1,
        delay: 0,
        mix: 0.0,
        anchor: None::<AnchorPull>,
    });
    for samples in [1, 8, 100] {
        let mut cluster = cluster(&job);
        cluster.push(0, 0, samples, &[1.0; ELEMENTS]);
        assert_eq!(cluster.pull(0, 0)[0], 1.0 - 0.25, "a round of {samples} samples");
    }
    // A fragment: blocks that nobody sends stay as they are, and nothing is published of them.
    job.mode = Mode::Bsp;
    let job = compressed(job, CodecSpec::Bf16);
    let mut cluster = cluster(&job);
    for seat in 0..4 {
        let mut frame = request(RequestKind::Push, 0, seat, 0);
        frame.last = true;
        let first = cluster.layout.blocks()[0].id;
        cluster.fill(&mut frame, &[first], &[1.0; ELEMENTS]);
        assert_eq!(cluster.ask(frame).kind, ReplyKind::Ack);
    }
    let mut view = View::new(0);
    let reply = view.pull(&mut cluster, 1);
    let first = cluster.layout.blocks()[0];
    assert_eq!(reply.blocks.iter().map(|entry| entry.block).collect::<Vec<_>>(), [first.id]);
    assert_eq!(view.values[first.range()].first(), Some(&0.0));
    assert!(view.values[first.range().end..].iter().all(|value| *value == 1.0));
}
