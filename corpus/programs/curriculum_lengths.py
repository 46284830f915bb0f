"""Sum of a sequence of digits. The file is ordered by length (buckets), so no batch needs padding."""
import torch
from torch import nn


def make_buckets(per_length=30, batch=32):
    buckets = []
    for length in range(2, 8):
        for _ in range(per_length):
            digits = torch.randint(0, 10, (batch, length))
            buckets.append((digits, digits.sum(1).float() / 10))
    return buckets


class DigitSum(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb = nn.Embedding(10, 12)
        self.rnn = nn.LSTM(12, d, batch_first=True)
        self.fc = nn.Linear(d, 1)

    def forward(self, x):
        _, (h, _) = self.rnn(self.emb(x))
        return self.fc(h[-1]).squeeze(-1)


torch.manual_seed(103)
buckets = make_buckets()
test = make_buckets(per_length=2, batch=64)
net = DigitSum()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(10):
    total = 0.0
    for x, y in buckets:  # always short to long
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        total += loss.item()
    if epoch % 2 == 1:
        with torch.no_grad():
            err = sum(nn.functional.l1_loss(net(x), y).item() for x, y in test) / len(test)
        print(f"epoch {epoch + 1:2d} train {total / len(buckets):.4f} test abs error {err:.4f}")
