"""Contextual bandit: a policy network learns which of five levers pays."""
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(87)
CONTEXT, LEVERS = 6, 5
pay = torch.randn(CONTEXT, LEVERS)


def reward(context, action):
    best = (context @ pay).softmax(1)
    return torch.bernoulli(best.gather(1, action[:, None]).squeeze(1).clamp(0.05, 0.95))


policy = nn.Sequential(nn.Linear(CONTEXT, 32), nn.ReLU(), nn.Linear(32, LEVERS))
opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
baseline, history = 0.0, []
for update in range(1, 601):
    context = 2 * torch.randn(64, CONTEXT)
    dist = Categorical(logits=policy(context))
    action = dist.sample()
    r = reward(context, action)
    advantage = r - baseline
    loss = (dist.log_prob(action) * advantage).mean() - 0.001 * dist.entropy().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    baseline = 0.95 * baseline + 0.05 * r.mean().item()
    history.append(r.mean().item())
    if update % 100 == 0:
        print(f"update {update} loss {loss.item():.4f} mean reward {sum(history[-50:]) / 50:.3f}")
