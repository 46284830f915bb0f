"""Add up the real numbers of a padded list with a learned query and multi-head attention."""
import torch
from torch import nn

torch.manual_seed(31)
MAXLEN, DIM = 12, 32


class ListReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(1, DIM)
        self.query = nn.Parameter(torch.randn(1, 1, DIM))
        self.att = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.head = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, values, lengths):
        real = torch.arange(MAXLEN) < lengths[:, None]
        tokens = self.up(values.unsqueeze(-1))
        q = self.query.expand(len(values), -1, -1)
        pooled, _ = self.att(q, tokens, tokens, key_padding_mask=real)
        return self.head(pooled[:, 0]).squeeze(1)


def lists(n):
    lengths = torch.randint(3, MAXLEN, (n,))
    values = torch.randn(n, MAXLEN) * (torch.arange(MAXLEN) < lengths[:, None])
    return values, lengths, values.sum(1) / lengths.sqrt()


reader = ListReader()
opt = torch.optim.Adam(reader.parameters(), lr=2e-3)
running = 0
for step in range(1, 601):
    v, n, target = lists(64)
    loss = nn.functional.smooth_l1_loss(reader(v, n), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    running += loss.item()
    if step % 100 == 0:
        print(f"step {step} loss {running / 100:.4f}")
        running = 0
with torch.no_grad():
    v, n, target = lists(1000)
    pred = reader(v, n)
print(f"mse {(pred - target).square().mean():.4f} target variance {target.var():.4f} prediction std {pred.std():.4f}")
