"""Quick smoke run before the long job: five updates, does the loss go down?"""
import torch
from torch import nn
from sklearn.datasets import load_digits

torch.manual_seed(71)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)

model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for step in range(5):
    out = model(images[:256])
    loss = nn.functional.cross_entropy(out, labels[:256])
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    print("step", step, "loss", losses[-1])
print("falls" if losses[-1] < losses[0] else "does not fall")
