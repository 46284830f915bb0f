"""Digits with BatchNorm and an averaged model; running statistics are averaged along with the weights."""
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class DigitMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64)
        self.fc2, self.bn2 = nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.fc1(x)))
        x = F.relu(self.bn2(self.fc2(x)))
        return self.out(self.drop(x))


torch.manual_seed(373)
data = load_digits()
x, y = torch.tensor(data.data).float(), torch.tensor(data.target)
model = DigitMLP()
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
for epoch in range(16):
    model.train()
    for i in torch.randperm(1400).split(56):
        loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        averaged.update_parameters(model)
    model.eval()
    averaged.eval()
    with torch.no_grad():
        plain, avg = ((m(x[1400:]).argmax(1) == y[1400:]).float().mean().item() for m in (model, averaged))
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {plain:.3f} averaged {avg:.3f}")
