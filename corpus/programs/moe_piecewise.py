# Mixture of experts with top-1 routing on a piecewise function.
# More experts than regions: some of them are simply not picked.
import torch
from torch import nn


class TopOneMoE(nn.Module):
    def __init__(self, d_in, d_hidden, d_out, n_experts):
        super().__init__()
        self.gate = nn.Linear(d_in, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d_in, d_hidden), nn.Tanh(), nn.Linear(d_hidden, d_out)) for _ in range(n_experts)
        )
        self.d_out = d_out

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        top_p, top_i = probs.max(dim=-1)
        out = x.new_zeros(len(x), self.d_out)
        for e, expert in enumerate(self.experts):
            rows = (top_i == e).nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            out = out.index_add(0, rows, top_p[rows, None] * expert(x[rows]))
        return out, top_i


def target(x):
    left = torch.sin(3 * x[:, 0]) + x[:, 1]
    right = x[:, 1] ** 2 - 1.5
    return torch.where(x[:, 0] < 0, left, right).unsqueeze(1)


torch.manual_seed(21)
model = TopOneMoE(2, 24, 1, n_experts=8)
# bias the router so that two experts share the plane at the start
with torch.no_grad():
    model.gate.bias.copy_(torch.tensor([3.0, 3.0, -3.0, -3.0, -3.0, -3.0, -3.0, -3.0]))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
usage = torch.zeros(8, dtype=torch.long)
for step in range(1, 1201):
    x = torch.empty(128, 2).uniform_(-2, 2)
    pred, chosen = model(x)
    usage += torch.bincount(chosen, minlength=8)
    loss = (pred - target(x)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 200 == 0:
        print(f"step {step:4d}  mse {loss.item():.4f}  routed {usage.tolist()}")
        usage.zero_()
