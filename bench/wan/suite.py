"""What is measured: the training that all share, our ways, the rivals, and the table of runs."""

import math

DATA = "/usr/share/datasets/fashion-mnist"
# The same for everybody: SGD with momentum 0.9 (no Nesterov, no weight decay), 128 samples a worker
# and step, linear warm-up and half a cosine over all steps.
TRAINING = {"learning_rate": 0.05, "momentum": 0.9, "batch": 128}
EPOCHS, WARMUP_STEPS, SAMPLES = 10, 50, 60_000
# Steps between two tests: a little more than half an epoch of 4 × 128.
TEST_EVERY = 64
TARGET = 0.87
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

MOMENTUM = [
    "optimizer.kind=momentum", "optimizer.momentum=0.9", "optimizer.nesterov=false",
    "optimizer.weight_decay=0.0",
]
INNER = ["local.inner.kind=momentum", "local.inner.momentum=0.9", "local.inner.weight_decay=0.0"]
MEAN = ["optimizer.kind=sgd", "optimizer.learning_rate=1.0", "optimizer.momentum=",
        "optimizer.nesterov=", "optimizer.weight_decay="]


def rate(key):
    return [f"{key}.learning_rate={TRAINING['learning_rate']}"]


BSP = ["mode=bsp", "staleness=", *MOMENTUM, *rate("optimizer")]
LOCAL = ["mode=local", "staleness=", *INNER, *rate("local.inner")]
# Our ways: what each sets beside what all share.
OURS = {
    "dense": [*BSP, "wire.up=f32", "wire.down=f32"],
    "bf16": [*BSP, "wire.up=bf16", "wire.down=bf16"],
    "auto": [*BSP, "compress=auto", "in_flight=2"],
    "topk": [*BSP, "compress=top_k:0.01", "feedback.momentum_correction=true", "ramp.steps=59"],
    "topk-ahead": [*BSP, "compress=top_k:0.01", "feedback.momentum_correction=true",
                   "ramp.steps=59", "in_flight=2"],
    "local16": [*LOCAL, *MEAN, "local.steps=16", "compress=int8"],
    "local16-sparse": [*LOCAL, *MEAN, "local.steps=16", "compress=top_k:0.05"],
    "local32": [*LOCAL, *MEAN, "local.steps=32", "compress=int8"],
}
RIVALS = ["fp32", "fp16", "powersgd4", "postlocal16", "postlocal128"]
JOBS = {"mlp": "configs/jobs/fashion-mlp.toml", "lenet": "configs/jobs/fashion-lenet.toml"}

# Seconds a run may take when it ends at the target, and when it goes through all epochs.
TARGET_SECONDS, WHOLE_SECONDS = 120, 300
# Ways that cannot reach the target in time on a slow link run so long, for their samples a second.
PACE_SECONDS = 30
HOPELESS = {"20mbit": {"fp32", "fp16"}, "5mbit": {"fp32", "fp16"}, "100mbit": set()}


def job(asked):
    """The job file and the keys that are set, of a run of ours."""
    steps = asked.epochs * math.ceil(SAMPLES / (asked.workers * TRAINING["batch"]))
    shared = [
        "name=wan", f"workers={asked.workers}", "servers=1", f"seed={asked.seed}",
        f"epochs={asked.epochs}", f"batch={TRAINING['batch']}",
        f"evaluate.every_steps={TEST_EVERY}", "schedule.kind=cosine",
        f"schedule.warmup_steps={WARMUP_STEPS}", f"schedule.total_steps={steps}",
    ]
    if asked.job:
        return asked.job, [*shared, *asked.set]
    if asked.way not in OURS:
        raise SystemExit(f"bench-wan: no way {asked.way!r}; there are {' '.join(OURS)}")
    return JOBS[asked.model], [*shared, *OURS[asked.way], *asked.set]


def run(kind, model, way, link, seconds, *more):
    argv = [kind, "--model", model, "--way", way, *link, "--seconds", str(seconds), *more]
    return argv


def table(seeds=False):
    """Every run of `make bench-wan`: name and arguments, the most telling first.

    seeds: also the runs that repeat others with more seeds, which cost half an hour more.
    """
    until = "--until-target"
    rows = []
    unshaped = []
    for model in ("mlp", "lenet"):
        rows.append((f"unshaped/{model}/ours-dense", run("ours", model, "dense", unshaped, WHOLE_SECONDS, until)))
    for rate_name in ("20mbit", "100mbit"):
        link = ["--rate", rate_name, "--rtt", "20"]
        for model in ("mlp", "lenet"):
            for way in ("auto", "topk-ahead", "local16"):
                rows.append((f"{rate_name}/{model}/ours-{way}", run("ours", model, way, link, TARGET_SECONDS, until)))
            for way in reversed(RIVALS):
                seconds = PACE_SECONDS if way in HOPELESS[rate_name] else TARGET_SECONDS
                rows.append((f"{rate_name}/{model}/ddp-{way}", run("ddp", model, way, link, seconds, until)))
    # Loss: the same two ways of ours with and without, and the rivals under both congestion controls.
    for name, loss in [("clean50", []), ("lossy50", ["--loss", "0.01"])]:
        link = ["--rate", "100mbit", "--rtt", "50", *loss]
        for way in ("topk-ahead", "local16"):
            rows.append((f"{name}/mlp/ours-{way}", run("ours", "mlp", way, link, TARGET_SECONDS, until)))
        for cc in ("cubic", "bbr") if loss else ():
            for way in ("postlocal16", "postlocal128"):
                rows.append((f"{name}/mlp/ddp-{way}-{cc}",
                             run("ddp", "mlp", way, link, TARGET_SECONDS, until, "--cc", cc)))
    # All epochs: time and final accuracy on the slowest link, bytes at equal accuracy.
    for way in ("dense", "topk", "local32"):
        rows.append((f"bytes/mlp/ours-{way}", run("ours", "mlp", way, unshaped, WHOLE_SECONDS)))
    rows.append(("5mbit/mlp/ours-local32",
                 run("ours", "mlp", "local32", ["--rate", "5mbit", "--rtt", "50"], 2 * WHOLE_SECONDS)))
    for seed in ("2", "3") if seeds else ():
        for way in ("dense", "topk", "local32"):
            rows.append((f"bytes-seed{seed}/mlp/ours-{way}",
                         run("ours", "mlp", way, unshaped, WHOLE_SECONDS, "--seed", seed)))
    return rows


def minutes(rows):
    """The most that runs can take, with their start."""
    return sum(float(argv[argv.index("--seconds") + 1]) + 15 for _, argv in rows) / 60
