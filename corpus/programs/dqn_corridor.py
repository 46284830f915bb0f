"""Deep Q-learning on a windy corridor with a frozen target network."""
import copy
import random
from collections import deque

import torch
import torch.nn as nn


class Corridor:
    """Walk right to reach the goal at cell 7; cell 0 ends the episode with nothing."""

    LENGTH = 8

    def reset(self):
        self.pos, self.t = 2, 0
        return self.obs()

    def obs(self):
        v = [0.0] * self.LENGTH
        v[self.pos] = 1.0
        return v

    def step(self, action):
        move = 1 if action == 1 else -1
        if random.random() < 0.1:
            move = -move
        self.pos += move
        self.t += 1
        goal = self.pos == self.LENGTH - 1
        done = goal or self.pos == 0 or self.t >= 40
        return self.obs(), float(goal), done


class Agent:
    def __init__(self, gamma=0.95):
        self.q = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.target = copy.deepcopy(self.q)
        for p in self.target.parameters():
            p.requires_grad = False
        self.opt = torch.optim.Adam(self.q.parameters(), lr=2e-3)
        self.memory = deque(maxlen=4000)
        self.gamma = gamma
        self.updates = 0

    def act(self, s, eps):
        if random.random() < eps:
            return random.randrange(2)
        with torch.no_grad():
            return int(self.q(torch.tensor(s)).argmax())

    def learn(self):
        batch = random.sample(self.memory, 32)
        s, a, r, s2, d = zip(*batch)
        s, s2 = torch.tensor(s), torch.tensor(s2)
        a, r, d = torch.tensor(a), torch.tensor(r), torch.tensor(d, dtype=torch.float32)
        with torch.no_grad():
            goal = r + self.gamma * (1 - d) * self.target(s2).max(1).values
        current = self.q(s).gather(1, a[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(current, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1
        if self.updates % 50 == 0:
            self.target.load_state_dict(self.q.state_dict())
        return loss.item()


if __name__ == "__main__":
    random.seed(3)
    torch.manual_seed(3)
    env, agent, returns = Corridor(), Agent(), []
    loss = float("nan")
    for episode in range(260):
        s, total, done = env.reset(), 0.0, False
        eps = max(0.05, 1 - episode / 150)
        while not done:
            a = agent.act(s, eps)
            s2, r, done = env.step(a)
            agent.memory.append((s, a, r, s2, done))
            s, total = s2, total + r
            if len(agent.memory) >= 64:
                loss = agent.learn()
        returns.append(total)
        if episode % 20 == 19:
            print(f"episode {episode + 1:3d} loss {loss:.5f} success rate {sum(returns[-20:]) / 20:.2f}")
