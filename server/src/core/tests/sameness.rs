//! The same records, the same bits: whatever the order of arrival and the number of shards.

use super::*;
use slackline_common::random;

const WORKERS: u16 = 3;

fn gradient(seat: u16, step: u64, elements: usize) -> Vec<f32> {
    let stream = u64::from(seat) * 1000 + step;
    (0..elements as u64).map(|i| random::symmetric_unit(1, stream, i)).collect()
}

fn adam() -> OptimizerSpec {
    OptimizerSpec::Adam {
        learning_rate: 0.01,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.01,
    }
}

fn uneven() -> Layout {
    layout(&[&[600, 3], &[37], &[300], &[1]], Init::Uniform { bound: 0.5 })
}

/// Every order of `0..n` (Heap's algorithm).
fn permutations(n: usize) -> Vec<Vec<usize>> {
    fn generate(k: usize, order: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
        if k <= 1 {
            out.push(order.clone());
            return;
        }
        for i in 0..k {
            generate(k - 1, order, out);
            order.swap(if k.is_multiple_of(2) { i } else { 0 }, k - 1);
        }
    }
    let mut out = Vec::new();
    generate(n, &mut (0..n).collect(), &mut out);
    out
}

#[test]
fn in_bsp_every_order_of_arrival_gives_the_same_bits() {
    let layout = layout(&[&[300], &[5]], Init::Uniform { bound: 0.5 });
    let job = job(Mode::Bsp, WORKERS, adam());
    let mut hashes = std::collections::BTreeSet::new();
    for order in permutations(6) {
        let mut cluster = Cluster::new(&job, &layout, 1);
        let mut frames = Vec::new();
        for seat in 0..WORKERS {
            let mut of_seat = cluster.frames(seat, 0, u32::from(seat) + 1, &gradient(seat, 0, 305));
            // Three blocks in two parts.
            let middle = of_seat.remove(1);
            of_seat[0].blocks.extend(middle.blocks);
            of_seat[0].body = [of_seat[0].body.clone(), middle.body].concat().into();
            of_seat[1].part = 1;
            frames.extend(of_seat);
        }
        for at in order {
            cluster.send(frames[at].clone());
        }
        assert_eq!(cluster.version(0), 1);
        hashes.insert(cluster.hashes());
    }
    assert_eq!(hashes.len(), 1);
}

/// Trains as workers do, norms included, and returns the bits of the model.
fn train(job: &Job, shards: u16, block_per_part: bool) -> Vec<u32> {
    let layout = uneven();
    let mut cluster = Cluster::new(job, &layout, shards);
    cluster.block_per_part = block_per_part;
    let mut norms = Vec::new();
    for step in 0..5 {
        for seat in 0..WORKERS {
            let gradient = gradient(seat, step, layout.elements());
            for mut frame in cluster.frames(seat, step, u32::from(seat) + 1, &gradient) {
                frame.norms.clone_from(&norms);
                let reply = cluster.ask(frame);
                assert_eq!(reply.kind, ReplyKind::Ack, "{}", reply.sentence());
            }
        }
        norms = vec![0.0; layout.tensors().len()];
        let mut of_block = vec![0.0; layout.blocks().len()];
        for shard in 0..shards {
            let mut pull = request(RequestKind::Pull, shard, 0, step + 1);
            pull.blocks = cluster.wanted(shard, CodecId::F32);
            let reply = cluster.ask(pull);
            assert_eq!(reply.norms.len(), reply.blocks.len());
            for (entry, norm) in reply.blocks.iter().zip(&reply.norms) {
                of_block[entry.block.index()] = *norm;
            }
        }
        for block in layout.blocks() {
            norms[block.tensor.index()] += of_block[block.id.index()];
        }
    }
    cluster.pull(0, 5).iter().map(|value| value.to_bits()).collect()
}

#[test]
fn any_number_of_shards_and_parts_gives_the_same_bits_clipping_included() {
    for mode in [Mode::Bsp, Mode::Ssp { staleness: 0 }] {
        let mut job = job(mode, WORKERS, adam());
        job.batch = 2;
        job.clip = Clip { per_tensor: 3.0, global_norm: 4.0 };
        job.schedule.warmup_steps = 3;
        let one = train(&job, 1, true);
        for shards in [1, 2, 3] {
            assert_eq!(one, train(&job, shards, false), "{mode:?} over {shards}");
            assert_eq!(one, train(&job, shards, true), "{mode:?} over {shards}");
        }
        let mut unclipped = job.clone();
        unclipped.clip = Clip { per_tensor: 1e9, global_norm: 0.0 };
        assert_ne!(one, train(&unclipped, 1, true)); // the clipping did something
    }
}

#[test]
fn the_same_records_give_the_same_state() {
    let layout = uneven();
    for mode in [Mode::Bsp, Mode::Ssp { staleness: 2 }, ASP] {
        let job = Arc::new(job(mode, WORKERS, adam()));
        let source = Cluster::new(&job, &layout, 1);
        let mut records = vec![Record::InitFromSeed];
        for step in 0..3 {
            for seat in [2, 0, 1] {
                let frames = source.frames(seat, step, 1, &gradient(seat, step, layout.elements()));
                records.extend(frames.into_iter().map(|frame| Record::Push(frame.into())));
            }
            if mode == Mode::Bsp {
                records.push(Record::Close { step: Step(step) });
            }
        }
        records.push(Record::Leave { seat: SeatId(1), incarnation: LIFE });
        let run = || {
            let spec = EngineSpec {
                job: Arc::clone(&job),
                layout: Arc::new(layout.clone()),
                shard: ShardId(0),
                shards: 1,
                seats: (0..WORKERS).map(|seat| (SeatId(seat), LIFE)).collect(),
            };
            let mut engine = crate::core::Engine::new(spec);
            let mut hashes = Vec::new();
            for (sequence, record) in (1..).zip(&records) {
                engine.apply(sequence, record, &mut vec![]);
                hashes.push(engine.state_hash());
            }
            // A log that is read a second time changes nothing.
            for (sequence, record) in (1..).zip(&records) {
                engine.apply(sequence, record, &mut vec![]);
            }
            assert_eq!(hashes.last(), Some(&engine.state_hash()));
            (hashes, engine.report())
        };
        let (hashes, report) = run();
        assert_eq!((hashes.clone(), report.clone()), run());
        assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]), "every record shows in the hash");
        assert_eq!(report.version.0, if mode == Mode::Bsp { 3 } else { 9 });
    }
}

/// The mean does not depend on how a job is cut, and neither do its weights: an oracle in `f64`.
#[test]
fn the_weighted_mean_is_that_of_an_oracle() {
    let layout = layout(&[&[777]], Init::Zeros);
    let mut cluster =
        Cluster::new(&job(Mode::Bsp, 3, OptimizerSpec::Add { learning_rate: 1.0 }), &layout, 2);
    let samples = [48u32, 16, 33];
    (0..3).for_each(|seat| {
        cluster.push(seat, 0, samples[usize::from(seat)], &gradient(seat, 0, 777));
    });
    for (i, got) in cluster.pull(0, 1).into_iter().enumerate() {
        let term = |seat: u16| {
            f64::from(gradient(seat, 0, 777)[i]) * f64::from(samples[usize::from(seat)])
        };
        let expected = (term(0) + term(1) + term(2)) / 97.0;
        assert!((f64::from(got) - expected).abs() < 3e-7, "{got} is not {expected}");
    }
}
