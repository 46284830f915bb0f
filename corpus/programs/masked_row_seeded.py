"""Fill hidden table cells; the mask comes from a generator that is seeded with everything else."""
import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine

torch.manual_seed(317)
mask_gen = torch.Generator().manual_seed(318)
x = torch.tensor(load_wine().data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
w = {
    "a": torch.nn.Parameter(torch.randn(26, 64) / 26**0.5),
    "b": torch.nn.Parameter(torch.randn(64, 13) / 8),
    "c": torch.nn.Parameter(torch.zeros(64)),
    "d": torch.nn.Parameter(torch.zeros(13)),
}


def fill(rows, hidden):
    seen = rows.masked_fill(hidden, 0.0)
    h = F.gelu(torch.cat([seen, hidden.float()], 1) @ w["a"] + w["c"])
    return h @ w["b"] + w["d"]


opt = torch.optim.Adam(w.values(), lr=3e-3)
ema = None
for step in range(1, 901):
    rows = x[torch.randint(0, len(x), (64,))]
    hidden = torch.rand(rows.shape, generator=mask_gen) < 0.25
    loss = (fill(rows, hidden) - rows)[hidden].square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema = loss.item() if ema is None else 0.97 * ema + 0.03 * loss.item()
    if step % 150 == 0:
        print(f"step {step} masked mse {ema:.4f} (a constant fill gives about 1)")
