"""Digits read from a folder, one class after the other, as ImageFolder would list them."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(19)


class FolderDigits(Dataset):
    def __init__(self, split):
        d = load_digits()
        cut = slice(0, 1300) if split == "train" else slice(1300, None)
        images, labels = d.images[cut] / 16.0, d.target[cut]
        self.items = []
        for c in range(10):
            self.items += [(img, c) for img, l in zip(images, labels) if l == c]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        img, label = self.items[i]
        return torch.tensor(img, dtype=torch.float32).unsqueeze(0), label


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Linear(96, 10)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


train_loader = DataLoader(FolderDigits("train"), batch_size=26, shuffle=True)
test_loader = DataLoader(FolderDigits("test"), batch_size=100)
net = SmallCNN()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for epoch in range(10):
    net.train()
    for i, (img, label) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(img), label)
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"epoch {epoch} batch {i} loss {loss.item():.3f}")
    net.eval()
    right = total = 0
    with torch.no_grad():
        for img, label in test_loader:
            right += (net(img).argmax(1) == label).sum().item()
            total += len(label)
    print(f"epoch {epoch} test accuracy {right / total:.3f}")
