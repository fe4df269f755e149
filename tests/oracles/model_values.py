#!/usr/bin/env python3
"""Prints what PyTorch says about one small model of every kind, for worker/src/train/pytorch.rs.

A line `model NAME LOSS TEST_LOSS_SUM`, then one `TENSOR NORM FIRST MIDDLE LAST` per tensor: its
gradient, or for a running statistic what one training step added to it.

Parameters and inputs come from a formula that both sides compute exactly: element i of a flat vector
is ((i * 7919 + salt) % 2001 - 1000) / 1000 * scale, in float32. Parameters are numbered in the order
of the layout, which is that of state_dict without num_batches_tracked; running variances get 1 added
to their magnitude.

Run: python tests/oracles/model_values.py > worker/src/train/pytorch.txt   (needs torch)
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


def formula(count, salt, scale):
    index = torch.arange(count, dtype=torch.int64)
    steps = (index * 7919 + salt) % 2001 - 1000
    return steps.to(torch.float32) * torch.tensor(scale / 1000, dtype=torch.float32)


class Mlp(nn.Module):
    def __init__(self, widths):
        super().__init__()
        for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
            setattr(self, f"fc{i + 1}", nn.Linear(inputs, outputs))
        self.layers = len(widths) - 1

    def forward(self, x):
        for i in range(1, self.layers):
            x = F.relu(getattr(self, f"fc{i}")(x))
        return getattr(self, f"fc{self.layers}")(x)


class Lenet(nn.Module):
    def __init__(self, shape, channels, hidden, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], channels[0], 5)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5)
        height, width = [((size - 4) // 2 - 4) // 2 for size in shape[1:]]
        self.fc1 = nn.Linear(channels[1] * height * width, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Basic(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, (outputs - inputs) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.added, self.added))
        return F.relu(y + x)


class Resnet20(nn.Module):
    def __init__(self, channels, width, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for group in range(3):
            outputs = width << group
            blocks = []
            for block in range(3):
                blocks.append(Basic(inputs, outputs, 2 if group and not block else 1))
                inputs = outputs
            setattr(self, f"layer{group + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        batch, context, width = x.shape
        q, k, v = (
            part.view(batch, context, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, context, width))


class Dense(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln2, self.mlp = nn.LayerNorm(width), Dense(width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Transformer(nn.Module):
    def __init__(self, context, width, heads, layers):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens):
        x = self.tok_emb(tokens) + self.pos_emb.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x)).flatten(0, 1)


def tensors(model):
    return {
        name: value for name, value in model.state_dict().items() if "num_batches" not in name
    }


def report(name, model, inputs, targets):
    state = tensors(model)
    flat = formula(sum(value.numel() for value in state.values()), 1, 0.5)
    start = 0
    with torch.no_grad():
        for key, value in state.items():
            part = flat[start : start + value.numel()].view(value.shape)
            value.copy_(part.abs() + 1 if key.endswith("running_var") else part)
            start += value.numel()
    before = {key: value.clone() for key, value in state.items()}
    model.eval()
    with torch.no_grad():
        test = F.cross_entropy(model(inputs), targets, reduction="sum").item()
    model.train()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    print(f"model {name} {loss.item():.7e} {test:.7e}")
    gradients = dict(model.named_parameters())
    for key, value in tensors(model).items():
        change = gradients[key].grad if key in gradients else value - before[key]
        change = change.flatten()
        picks = " ".join(f"{change[i].item():.6e}" for i in (0, change.numel() // 2, -1))
        print(f"{key} {change.norm().item():.6e} {picks}")


def main():
    torch.set_num_threads(1)
    classes = lambda count, below: (torch.arange(count) * 5 + 2) % below
    images = lambda *shape: formula(torch.Size(shape).numel(), 77, 1.0).view(shape)
    report("mlp", Mlp([9, 16, 11, 4]), images(5, 9), classes(5, 4))
    report("lenet", Lenet([2, 17, 20], [3, 9], 12, 3), images(5, 2, 17, 20), classes(5, 3))
    report("resnet20", Resnet20(3, 4, 3), images(5, 3, 9, 10), classes(5, 3))
    tokens = (torch.arange(21).view(3, 7) * 89 + 7) % 256
    report("transformer", Transformer(7, 12, 3, 2), tokens, classes(21, 256))


if __name__ == "__main__":
    main()
