"""Streaming learner: one row at a time, as the readings come in."""
import math

import torch


def stream(n, generator):
    for _ in range(n):
        x = torch.rand(3, generator=generator) * 2 - 1
        yield x, torch.sin(2 * x[0]) + x[1] * x[2]


class StreamingRegressor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = torch.nn.Parameter(torch.randn(3, 32) / math.sqrt(3))
        self.b1 = torch.nn.Parameter(torch.zeros(32))
        self.w2 = torch.nn.Parameter(torch.randn(32) / math.sqrt(32))
        self.b2 = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return torch.tanh(x @ self.w1 + self.b1) @ self.w2 + self.b2


def main():
    torch.manual_seed(61)
    gen = torch.Generator().manual_seed(62)
    net = StreamingRegressor()
    opt = torch.optim.SGD(net.parameters(), lr=0.03)
    window = 0.0
    for i, (x, y) in enumerate(stream(4000, gen), 1):
        loss = (net(x) - y) ** 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        window += loss.item()
        if i % 500 == 0:
            print(f"rows {i}: mean squared error over the last 500: {window / 500:.4f}")
            window = 0.0


main()
