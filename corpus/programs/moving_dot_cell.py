"""Predict the next frame of a moving dot; two memories of the cell are kept apart by a decoupling term."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class TwoMemoryCell(nn.Module):
    def __init__(self, n_in, hidden):
        super().__init__()
        self.c_gate, self.m_gate = nn.Linear(n_in + hidden, 2 * hidden), nn.Linear(n_in + hidden, 2 * hidden)

    def forward(self, x, c, m):
        i, g = self.c_gate(torch.cat([x, c], 1)).chunk(2, 1)
        dc = torch.sigmoid(i) * torch.tanh(g)
        i, g = self.m_gate(torch.cat([x, m], 1)).chunk(2, 1)
        dm = torch.sigmoid(i) * torch.tanh(g)
        return 0.8 * c + dc, 0.8 * m + dm, dc, dm


class Predictor(nn.Module):
    def __init__(self, size=12, hidden=32):
        super().__init__()
        self.hidden = hidden
        self.cell = TwoMemoryCell(size, hidden)
        self.out = nn.Linear(2 * hidden, size)

    def forward(self, frames):
        c = m = torch.zeros(len(frames), self.hidden)
        outputs, decouple = [], []
        for t in range(frames.size(1)):
            c, m, dc, dm = self.cell(frames[:, t], c, m)
            outputs.append(self.out(torch.cat([c, m], 1)))
            decouple.append(F.cosine_similarity(dc, dm, dim=1).abs().mean())
        decouple_loss = torch.stack(decouple).mean()
        return torch.stack(outputs, 1), decouple_loss


def movies(n, frames=9, size=12):
    pos = torch.randint(size, (n, 1)) + torch.randint(-2, 3, (n, 1)) * torch.arange(frames)
    return F.one_hot(pos % size, size).float() + 0.05 * torch.randn(n, frames, size)


torch.manual_seed(113)
net = Predictor()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(1, 351):
    clip = movies(32)
    pred, decouple_loss = net(clip[:, :-1])
    mse = F.mse_loss(pred, clip[:, 1:])
    loss = mse + 0.1 * decouple_loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} mse {mse.item():.4f} decoupling {decouple_loss.item():.4f}")
