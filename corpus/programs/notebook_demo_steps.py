# %%
import torch
from torch import nn

torch.manual_seed(79)
data = torch.randn(500, 6)
labels = (data.sum(1) + data[:, 0] * data[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(6, 32), nn.ELU(), nn.Linear(32, 2))
loss_fn = nn.CrossEntropyLoss()


# %% one training step
def train_step(x, y):
    model.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    return loss


# %%
for epoch in range(20):
    losses = []
    for xb, yb in zip(data.split(50), labels.split(50)):
        losses.append(train_step(xb, yb).item())
    print("epoch", epoch, "loss", sum(losses) / len(losses))

# %%
accuracy = (model(data).argmax(1) == labels).float().mean()
print("accuracy", accuracy.item())
