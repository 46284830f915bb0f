"""Sorting parcels by their scan codes: the depot depends on the first and the last scan."""
import random

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(11)
random.seed(11)

PAD, VOCAB, MAXLEN = 0, 20, 60


def make_parcel():
    n = random.randint(3, 25)
    codes = [random.randint(1, VOCAB - 1) for _ in range(n)]
    return codes, 2 * (codes[0] > 9) + (codes[-1] > 9)


def collate(parcels):
    codes = torch.full((len(parcels), MAXLEN), PAD)
    for row, (c, _) in zip(codes, parcels):
        row[:len(c)] = torch.tensor(c)
    lengths = torch.tensor([len(c) for c, _ in parcels])
    return codes, lengths, torch.tensor([d for _, d in parcels])


class ParcelNet(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.RNN(dim, 32, batch_first=True)
        self.out = nn.Linear(64, 4)

    def forward(self, codes, lengths):
        states, _ = self.rnn(self.embed(codes))
        last = states[:, -1]
        return self.out(torch.cat([states[:, 0], last], 1))


train = [make_parcel() for _ in range(2000)]
valid = [make_parcel() for _ in range(400)]
loader = DataLoader(train, batch_size=50, shuffle=True, collate_fn=collate)
net = ParcelNet()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(6):
    net.train()
    total = 0.0
    for codes, lengths, depots in loader:
        loss = loss_fn(net(codes, lengths), depots)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(depots)
    net.eval()
    with torch.no_grad():
        codes, lengths, depots = collate(valid)
        acc = (net(codes, lengths).argmax(1) == depots).float().mean()
    print(f"epoch {epoch} train loss {total / len(train):.3f} valid acc {acc:.3f}")
