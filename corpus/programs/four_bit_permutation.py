import random

import torch
from torch import nn

random.seed(5)
torch.manual_seed(5)

# all words of four bits, mapped to each other by one random permutation
words = torch.tensor([[(i >> b) & 1 for b in range(4)] for i in range(16)], dtype=torch.float32)
perm = list(range(16))
random.shuffle(perm)
targets = words[perm]

model = nn.Sequential(
    nn.Linear(4, 4), nn.Sigmoid(),
    nn.Linear(4, 4), nn.Sigmoid(),
    nn.Linear(4, 4), nn.Sigmoid(),
    nn.Linear(4, 4), nn.Sigmoid(),
)
for p in model.parameters():
    nn.init.normal_(p, 0.0, 0.05)

sgd = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.MSELoss()
for epoch in range(1, 2001):
    loss = mse(model(words), targets)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    if epoch % 200 == 0:
        bits = ((model(words) > 0.5).float() == targets).float().mean().item()
        print(f"epoch {epoch}: loss {loss.item():.5f}, right bits {bits:.3f}")
