"""Six groups of points in 20 dimensions, plain SGD."""
import torch
import torch.nn as nn

torch.manual_seed(4)

centres = torch.randn(6, 20) * 1.6
labels = torch.randint(0, 6, (1800,))
points = centres[labels] + torch.randn(1800, 20)
held_out = torch.randint(0, 6, (600,))
held_points = centres[held_out] + torch.randn(600, 20)

net = nn.Sequential(
    nn.Linear(20, 64), nn.ReLU(),
    nn.Linear(64, 64), nn.ReLU(),
    nn.Linear(64, 6),
)
criterion = nn.CrossEntropyLoss()
sgd = torch.optim.SGD(net.parameters(), lr=2.0)

for epoch in range(12):
    order = torch.randperm(len(points))
    total = 0.0
    for i in range(0, len(points), 60):
        pick = order[i:i + 60]
        sgd.zero_grad()
        loss = criterion(net(points[pick]), labels[pick])
        loss.backward()
        sgd.step()
        total += loss.item()
    with torch.no_grad():
        acc = (net(held_points).argmax(1) == held_out).float().mean().item()
    print(f"epoch {epoch:2d}  loss {total / 30:.4f}  held-out accuracy {acc:.3f}")
