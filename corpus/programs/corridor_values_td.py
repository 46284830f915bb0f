"""A noisy corridor: learn the state values under a fixed random walk, with TD targets."""
import torch
import torch.nn as nn

torch.manual_seed(82)
N = 9


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(N, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, s):
        return self.net(nn.functional.one_hot(s, N).float())


def rollout(batch, horizon=8):
    s = torch.randint(1, N - 1, (batch,))
    states, rewards, nexts, done = [], [], [], []
    for _ in range(horizon):
        move = torch.randint(0, 2, (batch,)) * 2 - 1
        nxt = (s + move).clamp(0, N - 1)
        end = (nxt == 0) | (nxt == N - 1)
        states.append(s); nexts.append(nxt); done.append(end.float())
        rewards.append((nxt == N - 1).float())
        s = torch.where(end, torch.randint(1, N - 1, (batch,)), nxt)
    return [torch.cat(z) for z in (states, rewards, nexts, done)]


critic, target = Critic(), Critic()
target.load_state_dict(critic.state_dict())
opt = torch.optim.Adam(critic.parameters(), lr=5e-3)
true_value = torch.arange(N).float() / (N - 1)
for update in range(1, 601):
    s, r, s2, done = rollout(16)
    with torch.no_grad():
        td = r + (1 - done) * target(s2).squeeze(1)
    loss = 0.5 * (critic(s).squeeze(1) - td).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if update % 20 == 0:
        target.load_state_dict(critic.state_dict())
    if update % 100 == 0:
        with torch.no_grad():
            v = critic(torch.arange(N)).squeeze(1)
        err = (v[1:-1] - true_value[1:-1]).abs().mean()
        print(f"update {update} loss {loss.item():.4f} value error {err:.3f} values {[round(a, 2) for a in v[1:-1].tolist()]}")
