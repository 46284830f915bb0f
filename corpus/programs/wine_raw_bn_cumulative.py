import torch
import torch.nn as nn
from sklearn.datasets import load_wine
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(311)
bunch = load_wine()
full = TensorDataset(torch.tensor(bunch.data, dtype=torch.float32), torch.tensor(bunch.target))
train_set, test_set = random_split(full, [128, len(full) - 128])
loader = DataLoader(train_set, batch_size=32, shuffle=True)

# momentum=None: plain cumulative average of the batch statistics
model = nn.Sequential(nn.BatchNorm1d(13, momentum=None), nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
for epoch in range(50):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    if epoch % 10 == 9:
        model.eval()
        with torch.no_grad():
            hits = {}
            for name, part in (("train", train_set), ("test", test_set)):
                x, y = next(iter(DataLoader(part, batch_size=len(part))))
                hits[name] = (model(x).argmax(1) == y).float().mean().item()
        print(f"epoch {epoch + 1} loss {loss.item():.4f} train acc {hits['train']:.3f} test acc {hits['test']:.3f}")
