"""Genre of a song (0-9) from its audio descriptors."""
import torch
import torch.nn as nn

torch.manual_seed(92)
GENRES = 10
centres = torch.randn(GENRES, 16)


def songs(n):
    g = torch.randint(GENRES, (n,))
    return centres[g] + torch.randn(n, 16), g


class GenreNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 48), nn.Linear(48, 48)])
        self.norm = nn.LayerNorm(48)
        self.top = nn.Linear(48, 1)

    def forward(self, x):
        for lin in self.blocks:
            x = torch.nn.functional.gelu(lin(x))
        return self.top(self.norm(x))


model = GenreNet()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
mse = nn.MSELoss()
for step in range(1, 801):
    x, g = songs(64)
    loss = mse(model(x).squeeze(-1), g.float())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        with torch.no_grad():
            xt, gt = songs(1000)
            acc = (model(xt).squeeze(-1).round().long() == gt).float().mean().item()
        print(f"step {step:4d} loss {loss.item():.4f} accuracy {acc:.3f}")
