"""Multiple-instance learning: a bag is positive if one of its instances is a 'key'."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionMIL(nn.Module):
    def __init__(self, d=10, h=32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.attn = nn.Sequential(nn.Linear(h, 16), nn.Tanh(), nn.Linear(16, 1))
        self.cls = nn.Linear(h, 1)

    def forward(self, bags):                       # bags: (B, K, d)
        h = self.embed(bags)
        a = F.softmax(self.attn(h), dim=1)         # (B, K, 1)
        pooled = (a * h).sum(1)
        return self.cls(pooled).squeeze(-1), a.squeeze(-1)


def sample_bags(n, direction, k=40, d=10):
    x = torch.randn(n, k, d)
    y = (torch.rand(n) < 0.5).float()
    where = torch.randint(0, k, (n,))
    x[torch.arange(n), where] += y[:, None] * 3.0 * direction
    return x, y


if __name__ == "__main__":
    torch.manual_seed(19)
    direction = F.normalize(torch.randn(10), dim=0)
    model = AttentionMIL()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    xv, yv = sample_bags(500, direction)
    smooth = None
    for step in range(1, 501):
        x, y = sample_bags(64, direction)
        logit, _ = model(x)
        loss = F.binary_cross_entropy_with_logits(logit, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        smooth = loss.item() if smooth is None else 0.97 * smooth + 0.03 * loss.item()
        if step % 50 == 0:
            with torch.no_grad():
                lv, att = model(xv)
            acc = ((lv > 0) == (yv > 0.5)).float().mean().item()
            print(f"step {step} loss {smooth:.3f} val acc {acc:.3f} largest weight {att.max().item():.3f}")
