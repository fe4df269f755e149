#!/usr/bin/env python3
"""Measures slackline beside PyTorch DDP over shaped links. Needs root and Linux.

  wan.py check [--rate 20mbit --rtt 20 --loss 0.01]      what the laboratory itself gives
  wan.py ours  --model mlp --way topk --rate 20mbit --rtt 20 --out DIR
  wan.py ours  --job configs/jobs/X.toml --set KEY=VALUE … --rate 20mbit --rtt 20 --out DIR
  wan.py ddp   --model mlp --way powersgd4 --rate 20mbit --rtt 20 --out DIR --python PYTHON
  wan.py table --out DIR [--only 20mbit]                 every run of suite.py that DIR has not yet
  wan.py summary --out DIR [--plots docs/bench]          Markdown, and plots as SVG

Every run appends one JSON line to DIR/results.jsonl and keeps its programs' own files in DIR/NAME/.
What is measured, the same for both: time zero is when all members are ready and training begins;
seconds include the tests, which one member makes while the others go on until they need it; bytes are
IP packets counted at the workers' interfaces; one thread a process.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

import runs
import suite

ROOT = Path(__file__).resolve().parents[2]


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    link = argparse.ArgumentParser(add_help=False)
    link.add_argument("--rate", default="none", help="of each worker's link, each way: 20mbit; none")
    link.add_argument("--rtt", type=float, default=0.0, help="round trip between two that talk, ms")
    link.add_argument("--loss", type=float, default=0.0, help="share of packets lost each way")
    link.add_argument("--cc", default="cubic", help="TCP congestion control, which DDP uses")
    link.add_argument("--queue-ms", type=float, default=50.0, help="longest wait in a link's queue")
    common = argparse.ArgumentParser(add_help=False)
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    common.add_argument("--bin", default=str(Path(target).resolve() / "release"), help="our programs")
    common.add_argument("--out", required=True, help="folder of the results, outside the repository")
    common.add_argument("--python", default=os.environ.get("PYTHON", "python3"), help="has torch")
    commands.add_parser("check", parents=[link]).add_argument(
        "--bin", default=str(Path(target).resolve() / "release"), help="our programs"
    )
    for name in ("ours", "ddp"):
        run = commands.add_parser(name, parents=[link, common])
        run.add_argument("--name", help="of the run; made from the rest when absent")
        run.add_argument("--model", default="mlp", choices=["mlp", "lenet"])
        run.add_argument("--workers", type=int, default=4)
        run.add_argument("--epochs", type=int, default=suite.EPOCHS)
        run.add_argument("--seed", type=int, default=1)
        run.add_argument("--target", type=float, default=suite.TARGET, help="test accuracy")
        run.add_argument("--until-target", action="store_true", help="end when it is reached")
        run.add_argument("--seconds", type=float, default=600.0, help="end after so long")
        if name == "ours":
            run.add_argument("--way", default="dense", help="of suite.OURS: " + " ".join(suite.OURS))
            run.add_argument("--job", help="another job file; its optimizer, mode and codecs instead of --way's")
            run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
            run.add_argument("--congestion", help="QUIC congestion control; ours by default")
        else:
            run.add_argument("--way", default="fp32", help="of suite.RIVALS: " + " ".join(suite.RIVALS))
    table = commands.add_parser("table", parents=[common])
    table.add_argument("--only", default=os.environ.get("WAN_ONLY", ""),
                       help="words; runs with one of them in their name")
    table.add_argument("--skip-rivals", action="store_true", help="measure ours alone")
    table.add_argument("--dry", action="store_true", help="only say which runs are left")
    summary = commands.add_parser("summary", parents=[common])
    summary.add_argument("--plots", help="folder for the SVG files")
    return parser.parse_args()


def table(asked):
    """Runs what is left, each in a process of its own: one that fails does not end the others."""
    import subprocess

    have = {result["name"] for result in runs.results(asked.out)}
    wanted = asked.only.split()
    left = [
        (name, argv) for name, argv in suite.table("seed" in asked.only)
        if name not in have and not (asked.skip_rivals and argv[0] == "ddp")
        and (not wanted or any(word in name for word in wanted))
    ]
    print(f"bench-wan: {len(left)} runs left, {suite.minutes(left):.0f} minutes at most", flush=True)
    failed = []
    for number, (name, argv) in enumerate(left, 1):
        print(f"bench-wan: {number} of {len(left)}: {name}: wan.py {shlex.join(argv)}", flush=True)
        if asked.dry:
            continue
        same = ["--name", name, "--out", asked.out, "--bin", asked.bin]
        more = ["--python", asked.python] if argv[0] == "ddp" else []
        done = subprocess.run([sys.executable, __file__, *argv, *same, *more], check=False)
        if done.returncode == 130:
            raise KeyboardInterrupt
        if done.returncode != 0:
            failed.append(name)
    if failed:
        print(f"bench-wan: {len(failed)} failed: {' '.join(failed)}")
    return 1 if failed else 0


def main():
    asked = options()
    if getattr(asked, "out", None):
        asked.out = os.path.abspath(asked.out)
        if Path(asked.out).is_relative_to(ROOT) and not Path(asked.out).is_relative_to(ROOT / "bench-out"):
            raise SystemExit("bench-wan: --out must be outside the repository, or in bench-out/")
        os.makedirs(asked.out, exist_ok=True)
    match asked.command:
        case "check":
            import check

            check.run(asked)
        case "ours":
            runs.ours(asked)
        case "ddp":
            runs.ddp(asked)
        case "table":
            return table(asked)
        case "summary":
            import report

            report.run(asked)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
