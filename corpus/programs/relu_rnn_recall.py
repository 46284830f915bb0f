"""Recall the first symbol after a long pause with a ReLU recurrent net."""
import torch
import torch.nn as nn


class ReluRNN(nn.Module):
    def __init__(self, symbols=6, hidden=40, gain=1.25):
        super().__init__()
        self.inp = nn.Embedding(symbols + 1, hidden)
        nn.init.normal_(self.inp.weight, std=0.1)
        self.rec = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, symbols)
        with torch.no_grad():
            self.rec.weight.copy_(gain * torch.eye(hidden))
        nn.init.zeros_(self.rec.bias)

    def forward(self, tokens):
        h = torch.zeros(tokens.shape[0], self.rec.in_features)
        for t in range(tokens.shape[1]):
            h = torch.relu(self.rec(h) + self.inp(tokens[:, t]))
        return self.out(h)


def recall_batch(n, length, symbols=6):
    x = torch.full((n, length), symbols)
    x[:, 0] = torch.randint(0, symbols, (n,))
    # a few distractors in the middle
    pos = torch.randint(1, length, (n, 2))
    x.scatter_(1, pos, torch.randint(0, symbols, (n, 2)))
    return x, x[:, 0]


torch.manual_seed(75)
net = ReluRNN()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
loss_fn = nn.CrossEntropyLoss()
for step in range(1, 301):
    length = 40 if step > 20 else 10
    x, y = recall_batch(32, length)
    loss = loss_fn(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step <= 5 or step % 20 == 1:
        print(f"step {step} length {length} loss {loss.item():.4g}")
