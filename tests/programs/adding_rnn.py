"""The adding problem with a plain tanh RNN: sum the two marked numbers in a sequence."""

import torch
import torch.nn as nn

torch.manual_seed(3)

T = 40
HIDDEN = 96
BATCH = 64
UPDATES = 300


def batch():
    values = torch.rand(BATCH, T)
    marks = torch.zeros(BATCH, T)
    first = torch.randint(0, T // 2, (BATCH,))
    second = torch.randint(T // 2, T, (BATCH,))
    rows = torch.arange(BATCH)
    marks[rows, first] = 1.0
    marks[rows, second] = 1.0
    target = values[rows, first] + values[rows, second]
    return torch.stack([values, marks], dim=-1), target


class AddingRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(2, HIDDEN, batch_first=True)
        self.readout = nn.Linear(HIDDEN, 1)
        for name, p in self.rnn.named_parameters():
            if "weight" in name:
                nn.init.normal_(p, std=0.3)
            else:
                nn.init.zeros_(p)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.readout(out[:, -1]).squeeze(-1)


net = AddingRNN()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
average = 0.0
for it in range(1, UPDATES + 1):
    x, target = batch()
    opt.zero_grad()
    loss = nn.functional.mse_loss(net(x), target)
    loss.backward()
    opt.step()
    average += loss.item() / 25
    if it % 25 == 0:
        print(f"{it:4d}  mse {average:.4f}")
        average = 0.0
