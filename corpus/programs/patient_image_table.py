"""Late fusion: an image branch and a table branch, one head."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ImageBranch(nn.Sequential):
    def __init__(self, out):
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(64, out),
        )


class Fusion(nn.Module):
    def __init__(self, n_table=8, width=24):
        super().__init__()
        self.image_branch = ImageBranch(width)
        self.table_branch = nn.Sequential(nn.Linear(n_table, 48), nn.ReLU(), nn.Linear(48, width))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(2 * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, image, table):
        a = self.image_branch(image)
        b = self.image_branch(image)
        return self.head(torch.cat([a, b], dim=1)).squeeze(1)


def patients(n):
    image = torch.randn(n, 1, 10, 10)
    lesion = torch.rand(n) < 0.5
    image[lesion, :, 3:6, 3:6] += 1.5
    table = torch.randn(n, 8)
    risk = 1.0 * lesion + 1.2 * table[:, 0] - 0.8 * table[:, 3] + table[:, 1] * table[:, 2]
    return image, table, risk + 0.1 * torch.randn(n)


torch.manual_seed(44)
train_set, val_set = patients(1500), patients(400)
model = Fusion()
optim = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(15):
    model.train()
    loss_sum = 0
    for idx in torch.randperm(1500).split(50):
        image, table, risk = (t[idx] for t in train_set)
        loss = F.mse_loss(model(image, table), risk)
        optim.zero_grad()
        loss.backward()
        optim.step()
        loss_sum += loss.item()
    model.eval()
    with torch.no_grad():
        val = F.mse_loss(model(*val_set[:2]), val_set[2])
    print(f"epoch {epoch + 1:2d} train mse {loss_sum / 30:.3f} val mse {val:.3f}")
print("var of risk", round(val_set[2].var().item(), 3))
