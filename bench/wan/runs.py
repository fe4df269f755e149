"""One run each of slackline and of DDP in the laboratory, and the result that both give."""

import datetime
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import suite
from lab import Lab

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
POLL_SECONDS = 0.1
# Until training begins: starting and reading the data on a busy machine.
START_SECONDS = 180.0
# A UDP payload that fits the path: 1500 bytes of the internet, or the unshaped laboratory's 9000.
UDP_PAYLOAD = {1500: 1452, 9000: 6500}


class Failed(SystemExit):
    """A run that gave no result."""


def results(out):
    """The results so far; of two with one name the later."""
    path = Path(out) / "results.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return list({result["name"]: result for result in map(json.loads, lines)}.values())


def lines_of(path, seen):
    """The whole lines that a growing file of JSON lines has after `seen` bytes, and the new `seen`."""
    if not path.exists():
        return [], seen
    with open(path, "rb") as file:
        file.seek(seen)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], seen + len(whole)


def gradients(samples):
    """Gradients computed: steps × workers, where the steps of a log may be rounds of several."""
    return max(1.0, samples / suite.TRAINING["batch"])


class Watch:
    """Follows a run: its tests, its steps, the bytes of its workers' links."""

    def __init__(self, lab, asked):
        self.lab, self.asked = lab, asked
        self.began, self.zero, self.counts = None, None, None
        self.tests, self.steps, self.samples = [], 0, 0
        # The last row of progress: samples a second up to it.
        self.seconds, self.ended = 0.0, False

    def begin(self, at):
        self.began, self.zero = at, self.count()
        self.counts = self.zero

    def count(self):
        return [self.lab.counters(host) for host in range(1, self.lab.hosts)]

    def progress(self, at, steps, samples):
        if samples > self.samples:
            self.samples, self.seconds, self.counts = samples, at - self.began, self.count()
        self.steps = max(self.steps, steps)

    def test(self, at, steps, accuracy):
        self.tests.append([round(at - self.began, 3), steps, accuracy])
        print(f"  {at - self.began:7.1f} s  step {steps:5}  test accuracy {accuracy:.4f}", flush=True)

    def follow(self, read, members):
        """Polls until the run is over, has reached what it is for, or has had its time.

        read: gives new rows to `begin`, `progress`, `test`, and sets `ended`. members: processes that
        must not end before.
        """
        start = time.time()
        while not self.ended:
            time.sleep(POLL_SECONDS)
            read()
            now = time.time()
            if self.began is None and now - start > START_SECONDS:
                raise Failed(f"bench-wan: training did not begin within {START_SECONDS:.0f} s")
            if self.began is not None:
                if now - self.began > self.asked.seconds:
                    return
                if self.asked.until_target and self.reached() is not None:
                    return
            if not self.lab.is_whole():
                raise Failed("bench-wan: a relay ended: this run's link is broken")
            lost = [member for member in members if member.poll() not in (None, 0)]
            if lost and not self.ended:
                read()
                if not self.ended:
                    raise Failed(f"bench-wan: {lost[0].args[-4:]} ended with {lost[0].returncode}")

    def reached(self):
        """Seconds to the target, between the tests before and after on a straight line."""
        before = None
        for test in self.tests:
            if test[2] >= self.asked.target:
                if before is None:
                    return test[0]
                share = (self.asked.target - before[2]) / (test[2] - before[2])
                return round(before[0] + share * (test[0] - before[0]), 2)
            before = test
        return None

    def result(self, kind, more):
        asked, workers = self.asked, self.lab.hosts - 1
        moved = [
            sum(now[way] - zero[way] for now, zero in zip(self.counts, self.zero)) for way in (0, 1)
        ]
        each = gradients(self.samples)
        return {
            "name": asked.name, "kind": kind, "way": asked.way, "model": asked.model,
            "rate": asked.rate, "rtt_ms": asked.rtt, "loss": asked.loss,
            "cc": asked.cc if kind == "ddp" else None, "workers": workers, "seed": asked.seed,
            "epochs": asked.epochs, "date": datetime.datetime.now().isoformat(timespec="seconds"),
            "load": os.getloadavg()[0], "ended": self.ended, "target": asked.target,
            "seconds_to_target": self.reached(), "seconds": round(self.seconds, 3),
            "steps": self.steps, "samples": self.samples,
            "samples_per_second": round(self.samples / self.seconds, 1) if self.seconds else None,
            "link_bytes_up": round(moved[0] / each), "link_bytes_down": round(moved[1] / each),
            "final_accuracy": self.tests[-1][2] if self.ended and self.tests else None,
            "tests": self.tests, **more,
        }


def keep(asked, result):
    with open(Path(asked.out) / "results.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    shown = {key: value for key, value in result.items() if key not in ("tests", "command", "sets")}
    print(json.dumps(shown), flush=True)


def prepare(asked, kind):
    """Names the run and gives it an empty folder."""
    way = Path(asked.job).stem if getattr(asked, "job", None) else asked.way
    asked.way = way
    link = f"{asked.rate}-{asked.rtt:g}ms" + (f"-{asked.loss:g}" if asked.loss else "")
    asked.name = asked.name or f"{link}/{asked.model}/{kind}-{way}" + (
        f"-{asked.cc}" if kind == "ddp" else ""
    )
    folder = Path(asked.out) / asked.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def lab_for(asked, path, workers):
    relay = Path(asked.bin) / "slackline-wan-relay"
    if (asked.rtt or asked.loss) and not relay.exists():
        raise Failed(f"bench-wan: {relay} is not there: cargo build --release -p tests --bins")
    return Lab(workers, asked.rate, asked.rtt, asked.loss, path, asked.cc, asked.queue_ms,
               str(relay), asked.seed)


def ours(asked):
    """Coordinator and one server in host 0, a worker in each other host."""
    folder = prepare(asked, "ours")
    program = lambda name: str(Path(asked.bin) / name)  # noqa: E731
    job, sets = suite.job(asked)
    certificates = folder / "certs"
    quiet = {"stdout": subprocess.DEVNULL}
    subprocess.run([program("slackline"), "certs", "--dir", certificates], check=True, **quiet)
    with lab_for(asked, "server", asked.workers) as lab:
        members = []
        for label, host, keys in cluster(lab, asked, folder):
            role = label.split("-")[0]
            write_config(folder / f"{label}.toml", role, keys, asked.congestion)
            with open(folder / f"{label}.log", "wb") as log:
                argv = [program(f"slackline-{role}"), "--config", str(folder / f"{label}.toml")]
                members.append(lab.popen(host, argv, stdout=log, stderr=log,
                                         env=os.environ | suite.ONE_THREAD, cwd=ROOT))
        submit = [program("slackline"), "submit", job, "--detach",
                  "--coordinator", f"{lab.address(0)}:7700", "--certificates", str(certificates)]
        submit += [word for one in sets for word in ("--set", one)]
        if lab.popen(0, submit, cwd=ROOT, **quiet).wait() != 0:
            raise Failed(f"bench-wan: the job was not accepted: {folder}/coordinator.log")
        watch = Watch(lab, asked)
        follow_ours(watch, folder, members)
        if watch.ended:
            # The coordinator's last act is the summary.
            members[0].wait(timeout=60)
    summaries = list(folder.glob("runs/*/summary.json"))
    summary = json.loads(summaries[0].read_text(encoding="utf-8")) if watch.ended else {}
    if watch.ended and not summary.get("ok"):
        raise Failed(f"bench-wan: {summary.get('reason')}")
    each = gradients(summary.get("samples", 0))
    keys = ["payload_bytes_up", "payload_bytes_down", "wire_bytes_up", "wire_bytes_down"]
    more = {key: round(summary[key] / each) for key in keys if key in summary}
    keep(asked, watch.result("ours", {**more, "job": job, "sets": sets}))
    for large in folder.glob("runs/*/model.safetensors"):
        large.unlink()


def cluster(lab, asked, folder):
    """Every member: label, host, keys of its config file."""
    mtu, coordinator = UDP_PAYLOAD[lab.mtu], f"{lab.address(0)}:7700"
    # A machine with more processes than cores is late without being dead.
    yield "coordinator", 0, {
        "listen": coordinator, "run_dir": str(folder / "runs"), "mtu": mtu, "lease_seconds": 30.0,
        "start_timeout_seconds": START_SECONDS,
    }
    yield "server", 0, {"listen": f"{lab.address(0)}:7701", "coordinator": coordinator, "mtu": mtu}
    for seat in range(asked.workers):
        yield f"worker-{seat}", seat + 1, {"coordinator": coordinator, "seat": seat, "mtu": mtu}


def write_config(path, role, keys, congestion):
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    lines.append("[certificates]\nca = \"certs/ca.pem\"")
    lines.append(f"certificate = \"certs/{role}.pem\"\nkey = \"certs/{role}.key\"")
    if congestion:
        lines.append(f"[link]\ncongestion = \"{congestion}\"")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def follow_ours(watch, folder, members):
    seen, clock = 0, lambda row: datetime.datetime.fromisoformat(row["time"]).timestamp()

    def read():
        nonlocal seen
        for log in folder.glob("runs/*/log.jsonl"):
            rows, seen = lines_of(log, seen)
            for row in rows:
                if row["kind"] == "training":
                    watch.begin(clock(row))
                elif row["kind"] == "progress" and watch.began is not None:
                    watch.progress(clock(row), row["step"], row["samples"])
                    if row.get("test"):
                        watch.test(clock(row), row["step"], row["test"]["accuracy"])
                elif row["kind"] == "ended":
                    watch.ended = True

    watch.follow(read, members)


def ddp(asked):
    """Four ranks, one in each of the hosts 1 to 4; nobody in host 0."""
    folder = prepare(asked, "ddp")
    log = folder / "log.jsonl"
    argv = [asked.python, str(HERE / "ddp.py"), "--way", asked.way, "--model", asked.model,
            "--log", str(log)]
    keys = {**suite.TRAINING, "epochs": asked.epochs, "seed": asked.seed, "data": suite.DATA,
            "warmup": suite.WARMUP_STEPS, "every": suite.TEST_EVERY}
    argv += [word for key, value in keys.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    print(f"  TCP congestion control: {asked.cc}", flush=True)
    with lab_for(asked, "peers", asked.workers) as lab:
        members = []
        for rank in range(asked.workers):
            env = os.environ | suite.ONE_THREAD | {
                "RANK": str(rank), "WORLD_SIZE": str(asked.workers), "MASTER_PORT": "29500",
                "MASTER_ADDR": lab.address(1), "GLOO_SOCKET_IFNAME": "eth0",
            }
            with open(folder / f"rank-{rank}.log", "wb") as output:
                members.append(lab.popen(rank + 1, argv, env=env, stdout=output, stderr=output))
        watch, seen = Watch(lab, asked), 0

        def read():
            nonlocal seen
            rows, seen = lines_of(log, seen)
            for row in rows:
                if row["kind"] == "start":
                    watch.begin(row["time"])
                    continue
                watch.progress(row["time"], row["step"], row["samples"])
                if row["kind"] == "test":
                    watch.test(row["time"], row["step"], row["accuracy"])
                watch.ended = watch.ended or row["kind"] == "end"

        watch.follow(read, members)
    keep(asked, watch.result("ddp", {}))
