#!/usr/bin/env python3
"""Runs the CPU engine and PyTorch in turn and prints medians and ratios of samples per CPU second.

Usage: bench_engine.py [--rounds 5] [--seconds 2] [--models mlp,lenet,resnet20]
                       [--engine BINARY] [--python PYTHON]
Without --engine the benchmark is built with cargo first. PYTHON must have torch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def build():
    command = ["cargo", "bench", "-p", "slackline-worker", "--bench", "engine", "--no-run"]
    output = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    built = [m for m in messages if m.get("executable") and m["target"]["kind"] == ["bench"]]
    return built[-1]["executable"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--models", default="mlp,lenet,resnet20")
    parser.add_argument("--engine")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    engine = options.engine or build()
    ours, theirs = [engine], [options.python, str(HERE / "bench_torch.py")]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    rates = {}
    for number in range(options.rounds):
        for model in options.models.split(","):
            for name, command in [("slackline", ours), ("pytorch", theirs)]:
                line = subprocess.run(
                    [*command, model, str(options.seconds)],
                    env=os.environ | one_thread,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                ).stdout
                figures = json.loads(line)
                rate = figures["samples_per_cpu_second"]
                rates.setdefault((model, name), []).append(rate)
                plain = figures.get("samples_per_cpu_second_as_it_comes", rate)
                rates.setdefault((model, name + " as it comes"), []).append(plain)
                print(f"round {number + 1} {model} {name} {rate:.0f}", file=sys.stderr)
    for model in options.models.split(","):
        a, b = (rates[model, name] for name in ("slackline", "pytorch"))
        plain = statistics.median(rates[model, "pytorch as it comes"])
        print(
            f"{model}: {statistics.median(a) / plain:.2f} x PyTorch as it comes ({plain:.0f}); "
            f"in its faster memory format: slackline {statistics.median(a):.0f} ({max(a):.0f}), "
            f"pytorch {statistics.median(b):.0f} ({max(b):.0f}) samples per CPU second, median (best); "
            f"ratio of medians {statistics.median(a) / statistics.median(b):.2f}, "
            f"in one round {min(x / y for x, y in zip(a, b)):.2f} to {max(x / y for x, y in zip(a, b)):.2f}"
        )


if __name__ == "__main__":
    main()
