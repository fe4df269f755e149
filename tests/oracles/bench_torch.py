#!/usr/bin/env python3
"""The training step of worker/benches/engine.rs in PyTorch on one thread.

Usage: bench_torch.py [MODEL [SECONDS]]   prints one JSON line per model.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from model_values import Lenet, Mlp, Resnet20, Transformer

BATCH, RATE, WARM_UP_STEPS = 64, 0.01, 3

MODELS = {
    "mlp": (lambda: Mlp([784, 1024, 1024, 10]), (784,), 10),
    "lenet": (lambda: Lenet([1, 28, 28], [20, 50], 500, 10), (1, 28, 28), 10),
    "resnet20": (lambda: Resnet20(3, 16, 10), (3, 32, 32), 10),
    "transformer": (lambda: Transformer(64, 128, 4, 2), (64,), 256),
}


def measure(name, seconds, channels_last=False):
    make, shape, classes = MODELS[name]
    torch.manual_seed(1)
    model = make()
    if name == "transformer":
        inputs = torch.arange(BATCH * shape[0]).view(BATCH, -1) * 85 % classes
        targets = torch.arange(BATCH * shape[0]) * 5 % classes
    else:
        inputs = torch.rand(BATCH, *shape) * 2 - 1
        targets = torch.arange(BATCH) * 5 % classes
    if channels_last and len(shape) == 3:
        model = model.to(memory_format=torch.channels_last)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(WARM_UP_STEPS):
        step()
    start, samples = time.process_time(), 0
    while True:
        loss = step()
        samples += BATCH
        passed = time.process_time() - start
        if passed >= seconds:
            return samples / passed, loss.item()


def main():
    torch.set_num_threads(1)
    words = sys.argv[1:]
    seconds = float(words[1]) if len(words) > 1 else 3.0
    for name in [words[0]] if words else MODELS:
        # PyTorch in the memory format that is faster for it, and as it comes.
        formats = [False, True] if len(MODELS[name][1]) == 3 else [False]
        measured = [(*measure(name, seconds / len(formats), f), f) for f in formats]
        rate, loss, last = max(measured)
        line = {"engine": "pytorch", "model": name, "batch": BATCH, "channels_last": last}
        line |= {"samples_per_cpu_second": round(rate, 1), "loss": round(loss, 4)}
        line |= {"samples_per_cpu_second_as_it_comes": round(measured[0][0], 1)}
        print(json.dumps(line))


if __name__ == "__main__":
    main()
