"""Tell four waveforms apart with an LSTM."""
import torch
import torch.nn as nn


class WaveClassifier(nn.Module):
    def __init__(self, hidden=40, classes=4):
        super().__init__()
        self.hidden = hidden
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def init_hidden(self, batch):
        return torch.zeros(1, batch, self.hidden), torch.zeros(1, batch, self.hidden)

    def forward(self, x):
        h, c = self.init_hidden(x.size(0))
        out, _ = self.lstm(x, (h, c))
        return self.fc(h[-1])


def waves(n, steps=30):
    y = torch.randint(4, (n,))
    t = torch.linspace(0, 6.283, steps)
    x = torch.sin((1 + y[:, None]) * t + torch.rand(n, 1)) + 0.1 * torch.randn(n, steps)
    return x.unsqueeze(-1), y


torch.manual_seed(25)
model = WaveClassifier()
optim = torch.optim.Adam(model.parameters(), lr=5e-3)
xv, yv = waves(400)
for step in range(1, 251):
    x, y = waves(48)
    loss = nn.functional.cross_entropy(model(x), y)
    optim.zero_grad()
    loss.backward()
    optim.step()
    if step % 25 == 0:
        with torch.no_grad():
            acc = (model(xv).argmax(1) == yv).float().mean().item()
        print(f"{step:4d}: loss {loss.item():.4f} held-out accuracy {acc:.3f}")
