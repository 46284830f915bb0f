"""Which of four frequencies is in a noisy signal? A plain tanh RNN reads the samples one after another."""

import math

import torch
import torch.nn as nn

torch.manual_seed(3)

T = 50
HIDDEN = 96
BATCH = 64
UPDATES = 300
FREQUENCIES = torch.tensor([1.0, 2.0, 3.0, 4.0])


def batch():
    label = torch.randint(0, len(FREQUENCIES), (BATCH,))
    phase = 2 * math.pi * torch.rand(BATCH, 1)
    time = torch.linspace(0, 1, T)
    signal = torch.sin(2 * math.pi * FREQUENCIES[label].unsqueeze(1) * time + phase)
    return (signal + 0.1 * torch.randn(BATCH, T)).unsqueeze(-1), label


class WaveRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(1, HIDDEN, batch_first=True)
        self.readout = nn.Linear(HIDDEN, len(FREQUENCIES))
        for name, p in self.rnn.named_parameters():
            if "weight" in name:
                nn.init.normal_(p, std=0.3)
            else:
                nn.init.zeros_(p)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.readout(out[:, -1])


net = WaveRNN()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
loss_sum, hits = 0.0, 0
for it in range(1, UPDATES + 1):
    x, label = batch()
    opt.zero_grad()
    logits = net(x)
    loss = nn.functional.cross_entropy(logits, label)
    loss.backward()
    opt.step()
    loss_sum += loss.item()
    hits += (logits.argmax(1) == label).sum().item()
    if it % 25 == 0:
        print(f"{it:4d}  loss {loss_sum / 25:.4f}  accuracy {hits / 25 / BATCH:.3f}")
        loss_sum, hits = 0.0, 0
