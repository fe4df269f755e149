"""Prints what torch.optim makes of four parameters in 50 steps, as the Rust table in
common/src/optimizer/tests.rs.

Run: python tests/oracles/optimizer_values.py   (needs torch)

Parameters and gradients are exact in f32; hyperparameters are rounded to f32 first, because that is
how a job holds them; the arithmetic is torch's in f64, so that the table is the formula's value and
not one machine's rounding.
"""

import numpy
import torch

START = [1.0, -0.5, 0.25, 2.0]
STEPS = 50


def gradient(step, index):
    """Step from 1, index from 0: a multiple of 1/64 between -1/4 and 1/4, plus a steady 1/8."""
    return ((step * 7 + index * 13) % 33 - 16) / 64 + 1 / 8


def single(value):
    return float(numpy.float32(value))


def run(make):
    w = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = make([w])
    for step in range(1, STEPS + 1):
        w.grad = torch.tensor([gradient(step, i) for i in range(len(START))], dtype=torch.float64)
        optimizer.step()
    return w.tolist()


r = single(0.01)
mu = single(0.9)
alpha = single(0.99)
betas = (single(0.9), single(0.999))
eps = single(1e-8)
optim = torch.optim
for decay in (0.0, 0.1):
    wd = single(decay)
    for name, make in [
        ("sgd", lambda p: optim.SGD(p, lr=r, weight_decay=wd)),
        ("momentum", lambda p: optim.SGD(p, lr=r, momentum=mu, weight_decay=wd)),
        ("nesterov", lambda p: optim.SGD(p, lr=r, momentum=mu, weight_decay=wd, nesterov=True)),
        ("adagrad", lambda p: optim.Adagrad(p, lr=r, eps=eps, weight_decay=wd)),
        ("rmsprop", lambda p: optim.RMSprop(p, lr=r, alpha=alpha, eps=eps, weight_decay=wd)),
        ("adam", lambda p: optim.Adam(p, lr=r, betas=betas, eps=eps, weight_decay=wd)),
        ("adamw", lambda p: optim.AdamW(p, lr=r, betas=betas, eps=eps, weight_decay=wd)),
    ]:
        # The shortest decimals that read back as the nearest f32.
        values = ", ".join(str(numpy.float32(value)) for value in run(make))
        print(f'    ("{name}", {decay}, [{values}]),')
