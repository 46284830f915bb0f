"""Advantage actor-critic on a hand-written cart-pole, 16 environments at once."""
import torch
from torch import nn


class CartPoles:
    def __init__(self, n):
        self.s = torch.zeros(n, 4)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, which):
        self.s[which] = (torch.rand(int(which.sum()), 4) - 0.5) * 0.1

    def step(self, a):
        x, v, th, om = self.s.unbind(1)
        force = 10.0 * (a.float() * 2 - 1)
        tmp = (force + 0.05 * om**2 * th.sin()) / 1.1
        acc_th = (9.8 * th.sin() - th.cos() * tmp) / (0.5 * (4 / 3 - 0.1 * th.cos() ** 2 / 1.1))
        acc = tmp - 0.05 * acc_th * th.cos() / 1.1
        self.s = torch.stack([x + 0.02 * v, v + 0.02 * acc, th + 0.02 * om, om + 0.02 * acc_th], 1)
        done = (self.s[:, 0].abs() > 2.4) | (self.s[:, 2].abs() > 0.21)
        self.reset(done)
        return done


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, s):
        h = self.body(s * torch.tensor([1.0, 1.0, 5.0, 1.0]))
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def main():
    torch.manual_seed(379)
    env, net = CartPoles(16), ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    falls = 0
    for update in range(1, 301):
        logps, values, entropies, alive = [], [], [], []
        for _ in range(16):
            dist, v = net(env.s)
            a = dist.sample()
            done = env.step(a)
            logps.append(dist.log_prob(a))
            values.append(v)
            entropies.append(dist.entropy())
            alive.append((~done).float())
            falls += int(done.sum())
        with torch.no_grad():
            ret = net(env.s)[1]
        returns = []
        for m in reversed(alive):
            ret = m * (0.1 + 0.98 * ret)
            returns.append(ret)
        returns = torch.stack(returns[::-1])
        values, logps = torch.stack(values), torch.stack(logps)
        adv = (returns - values).detach()
        loss = -(logps * adv).mean() + 0.5 * (returns - values).pow(2).mean() - 0.005 * torch.stack(entropies).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        if update % 30 == 0:
            print(f"update {update} loss {loss.item():+.4f} value {values.mean().item():.2f} steps between falls {30 * 256 / max(falls, 1):.0f}")
            falls = 0


main()
