import torch
from torch import nn


class Meter:
    def __init__(self):
        self.total, self.n = 0.0, 0

    def update(self, value):
        self.total += value
        self.n += 1

    @property
    def mean(self):
        return self.total / max(1, self.n)


class MajorityGRU(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.rnn = nn.GRU(2, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 2)

    def forward(self, x):
        _, h = self.rnn(x)
        return self.fc(h[-1])


def get_batch(n=32, t=15):
    x = torch.randint(0, 2, (n, t))
    return nn.functional.one_hot(x, 2).float(), (x.sum(1) > t // 2).long()


def main():
    torch.manual_seed(293)
    model, meter, history = MajorityGRU(), Meter(), []
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(1, 401):
        x, y = get_batch()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(loss.item())
        history.append(loss.detach())
        if step % 50 == 0:
            print(f"step {step} mean loss so far {meter.mean:.4f} last {loss.item():.4f}")
    print("curve:", [round(v, 3) for v in torch.stack(history)[::40].tolist()])


main()
