"""REINFORCE with a running baseline on a 6x6 grid: walk to the goal in the corner in as few moves as possible."""

import torch
from torch import nn
from torch.distributions import Categorical

SIZE = 6
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class GridWorld:
    """Many copies of the grid at once; an episode ends at the goal or after `horizon` moves."""

    def __init__(self, copies=32, horizon=15):
        self.copies, self.horizon = copies, horizon
        self.goal = torch.tensor([SIZE - 1, SIZE - 1])

    def reset(self):
        self.position = torch.randint(0, SIZE - 1, (self.copies, 2))
        self.done = torch.zeros(self.copies, dtype=torch.bool)
        return self.observe()

    def observe(self):
        return self.position.float() / (SIZE - 1) * 2 - 1

    def step(self, action):
        moved = (self.position + MOVES[action]).clamp(0, SIZE - 1)
        self.position = torch.where(self.done[:, None], self.position, moved)
        arrived = (self.position == self.goal).all(-1)
        reward = torch.where(self.done, 0.0, torch.where(arrived, 1.0, -0.1))
        self.done = self.done | arrived
        return self.observe(), reward


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor = nn.Linear(32, 4)

    def forward(self, obs):
        return Categorical(logits=self.actor(self.body(obs)))


def rollout(env, policy):
    log_probs, rewards, alive, entropies = [], [], [], []
    obs = env.reset()
    for _ in range(env.horizon):
        dist = policy(obs)
        action = dist.sample()
        alive.append((~env.done).float())
        log_probs.append(dist.log_prob(action))
        entropies.append(dist.entropy())
        obs, reward = env.step(action)
        rewards.append(reward)
    rewards = torch.stack(rewards)
    returns = rewards.flip(0).cumsum(0).flip(0)
    return torch.stack(log_probs), returns, torch.stack(alive), torch.stack(entropies), env.done.float().mean().item()


def main(iterations=150):
    torch.manual_seed(8)
    env, policy = GridWorld(), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    baseline = 0.0
    for iteration in range(iterations):
        log_probs, returns, alive, entropies, solved = rollout(env, policy)
        baseline = 0.9 * baseline + 0.1 * (returns * alive).sum().item() / alive.sum().item()
        advantage = returns - baseline
        policy_loss = -(log_probs * advantage * alive).sum() / alive.sum()
        loss = policy_loss - 0.01 * (entropies * alive).sum() / alive.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 15 == 0 or iteration == iterations - 1:
            print(f"{iteration:3d} return {returns[0].mean().item():+.2f} solved {solved:.2f} loss {loss.item():+.3f}")


if __name__ == "__main__":
    main()
