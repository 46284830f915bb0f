"""Policy gradient for strings with many C's: a GRU writes, a score function judges."""
import torch
from torch import nn

ALPHABET = "CNOS()"


class Writer(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.emb = nn.Embedding(len(ALPHABET) + 1, 16)
        self.cell = nn.GRUCell(16, hidden)
        self.out = nn.Linear(hidden, len(ALPHABET))
        self.hidden = hidden

    def write(self, batch, length=10):
        h = torch.zeros(batch, self.hidden)
        token = torch.full((batch,), len(ALPHABET))
        tokens, logps = [], []
        for _ in range(length):
            h = self.cell(self.emb(token), h)
            dist = torch.distributions.Categorical(logits=self.out(h))
            token = dist.sample()
            tokens.append(token)
            logps.append(dist.log_prob(token))
        return torch.stack(tokens, 1), torch.stack(logps, 1)


def score(tokens):
    return (tokens == 0).float().mean(1)


class Reinforcement:
    def __init__(self, writer, lr=5e-3):
        self.writer = writer
        self.optimizer = torch.optim.Adam(writer.parameters(), lr=lr)
        self.baseline = 0.0

    def policy_gradient(self, n=32):
        tokens, logps = self.writer.write(n)
        reward = score(tokens)
        rl_loss = 0.0
        for lp, r in zip(logps, reward):
            rl_loss -= lp.sum() * (r.item() - self.baseline)
        rl_loss = rl_loss / n
        self.optimizer.zero_grad()
        rl_loss.backward()
        self.optimizer.step()
        self.baseline = 0.9 * self.baseline + 0.1 * reward.mean().item()
        return rl_loss.item(), reward.mean().item()


torch.manual_seed(108)
agent = Reinforcement(Writer())
rewards = []
for i in range(1, 301):
    loss, reward = agent.policy_gradient()
    rewards.append(reward)
    if i % 30 == 0:
        print(f"iteration {i} loss {loss:.4f} mean reward {sum(rewards[-30:]) / 30:.4f}")
