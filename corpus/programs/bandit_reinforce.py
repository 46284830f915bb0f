# %% [markdown]
# Policy gradient on a contextual bandit, with a learnt baseline.

# %%
import torch
import torch.nn as nn

torch.manual_seed(8)
N_ACTIONS, D = 5, 6
true_w = torch.randn(D, N_ACTIONS)


def pull(ctx, action):
    means = ctx @ true_w
    return means.gather(1, action[:, None]).squeeze(1) + 0.5 * torch.randn(len(ctx))


# %%
policy = nn.Sequential(nn.Linear(D, 32), nn.Tanh(), nn.Linear(32, N_ACTIONS))
value = nn.Sequential(nn.Linear(D, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-2)

# %%
history = []
for update in range(600):
    ctx = torch.randn(64, D)
    dist = torch.distributions.Categorical(logits=policy(ctx))
    action = dist.sample()
    reward = pull(ctx, action)
    v = value(ctx).squeeze(1)
    advantage = (reward - v).detach()
    policy_loss = -(dist.log_prob(action) * advantage).mean()
    value_loss = (v - reward).pow(2).mean()
    loss = policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(reward.mean().item())
    if update % 60 == 59:
        recent = sum(history[-60:]) / 60
        print(f"update {update + 1} policy loss {policy_loss.item():+.3f} value loss {value_loss.item():.3f} reward {recent:.3f}")

# %%
ctx = torch.randn(4000, D)
best = (ctx @ true_w).max(1).values.mean()
with torch.no_grad():
    greedy = pull(ctx, policy(ctx).argmax(1)).mean()
print(f"greedy reward {greedy:.3f}, best possible {best:.3f}")
