"""One rank of a PyTorch DistributedDataParallel run over gloo: what slackline is measured against.

Started by wan.py in a host of the laboratory, once per rank, with the rendezvous in the environment.
Rank 0 appends JSON lines to --log: `start`, `progress` about once a second, `test`, `end`.

The ways:
  fp32           all-reduce of f32 gradients
  fp16           the fp16 compression hook
  powersgd4      the PowerSGD hook, rank 4, with error feedback and warm start
  postlocalH     post-local SGD: every rank walks alone, parameters are averaged every H steps

Post-local SGD begins with its first walk and PowerSGD compresses from step 2 on, the earliest that the
hook allows with error feedback; PyTorch's default is 1000 for both. Dense first steps would cost them
most of the time that is measured here.
"""

import argparse
import gzip
import json
import math
import os
import re
import struct
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

POWER_SGD_BEGINS = 2
ONE_BUCKET_MB = 1024
MEAN, DEVIATION = 0.286, 0.353


def mlp():
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def lenet():
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )


def idx(path):
    """An IDX file of unsigned bytes."""
    with gzip.open(path) as file:
        data = file.read()
    axes = data[3]
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    return torch.frombuffer(bytearray(data[4 + 4 * axes :]), dtype=torch.uint8).view(shape)


def part(folder, name):
    images = idx(f"{folder}/{name}-images-idx3-ubyte.gz").flatten(1).float()
    labels = idx(f"{folder}/{name}-labels-idx1-ubyte.gz").long()
    return (images / 255 - MEAN) / DEVIATION, labels


def factor(step, warmup, total):
    """The learning rate's factor: linear warm-up, then half a cosine, as slackline's schedule."""
    ramp = (step + 1) / warmup if step < warmup else 1.0
    if step <= warmup:
        return ramp
    return (1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup)))) / 2


class Sync:
    """How ranks stay together: a wrapped model and what happens after each step."""

    def __init__(self, model, way):
        local = re.fullmatch(r"postlocal([0-9]+)", way)
        self.every = int(local[1]) if local else 0
        if self.every:
            self.model, self.plain = model, model
            self.average()
            return
        # The PowerSGD hook starts further all-reduces from the callbacks of the first. With two buckets
        # their order differs between ranks, and gloo pairs them by order: every rank waits for ever.
        one_bucket = {"bucket_cap_mb": ONE_BUCKET_MB} if way == "powersgd4" else {}
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True, **one_bucket)
        self.plain = model
        if way == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif way == "powersgd4":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=4, start_powerSGD_iter=POWER_SGD_BEGINS
            )
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif way != "fp32":
            raise SystemExit(f"ddp.py: no way {way!r}")

    def average(self):
        """One all-reduce of all parameters together, as torch's PeriodicModelAverager does."""
        with torch.no_grad():
            parameters = list(self.plain.parameters())
            flat = torch.cat([parameter.view(-1) for parameter in parameters])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            at = 0
            for parameter in parameters:
                parameter.copy_(flat[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()

    def after(self, step, last):
        """`step` counts from 1. Whether all ranks hold the same model now."""
        if not self.every:
            return True
        together = step % self.every == 0 or last
        if together:
            self.average()
        return together


def test(model, images, labels):
    right = 0
    with torch.no_grad():
        for at in range(0, len(labels), 128):
            scores = model(images[at : at + 128])
            right += int((scores.argmax(1) == labels[at : at + 128]).sum())
    return right / len(labels)


def train(options, say):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    sync = Sync({"mlp": mlp, "lenet": lenet}[options.model](), options.way)
    images, labels = part(options.data, "train")
    held_out = part(options.data, "t10k") if rank == 0 else None
    optimizer = torch.optim.SGD(
        sync.plain.parameters(), lr=options.learning_rate, momentum=options.momentum
    )
    whole = options.batch * ranks
    steps_per_epoch = math.ceil(len(labels) / whole)
    total = options.epochs * steps_per_epoch
    shuffle = torch.Generator().manual_seed(options.seed)
    step, samples, said, due = 0, 0, 0.0, False
    dist.barrier()
    say("start", step=0, samples=0, steps=total)
    for _ in range(options.epochs):
        order = torch.randperm(len(labels), generator=shuffle)
        for at in range(0, len(labels), whole):
            batch = order[at : at + whole]
            # The short batch at the end of an epoch is shared evenly.
            mine = batch.chunk(ranks)[rank] if len(batch) < whole else (
                batch[rank * options.batch : (rank + 1) * options.batch]
            )
            rate = options.learning_rate * factor(step, options.warmup, total)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(sync.model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            step, samples = step + 1, samples + len(batch)
            last = step == total
            together = sync.after(step, last)
            due = due or step % options.every == 0 or last
            if rank != 0:
                continue
            if due and together:
                say("test", step=step, samples=samples, accuracy=test(sync.plain, *held_out))
                due = False
            elif time.monotonic() - said > 1:
                said = time.monotonic()
                say("progress", step=step, samples=samples, loss=loss.item())
    say("end", step=step, samples=samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", required=True)
    parser.add_argument("--model", required=True, choices=["mlp", "lenet"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--log", required=True)
    for name, kind in [("epochs", int), ("batch", int), ("every", int), ("warmup", int), ("seed", int),
                       ("learning-rate", float), ("momentum", float)]:
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(options.log, "a", encoding="utf-8") as log:

        def say(kind, **fields):
            if int(os.environ["RANK"]) == 0:
                log.write(json.dumps({"time": time.time(), "kind": kind, **fields}) + "\n")
                log.flush()

        train(options, say)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
