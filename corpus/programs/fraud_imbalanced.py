from collections import Counter

import torch
import torch.nn as nn
from sklearn.datasets import make_classification
from sklearn.metrics import average_precision_score, f1_score
from torch.utils.data import DataLoader, TensorDataset

SEED = 97


def get_data():
    x, y = make_classification(6000, 16, n_informative=8, n_redundant=2, weights=[0.97], class_sep=2.0, flip_y=0.0, random_state=SEED)
    x = torch.tensor(x, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    return x, torch.tensor(y, dtype=torch.float32)


class FraudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
        nn.init.constant_(self.net[-1].bias, -3.5)  # prior log-odds

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    torch.manual_seed(97)
    x, y = get_data()
    print("labels", Counter(y.int().tolist()))
    loader = DataLoader(TensorDataset(x[:4500], y[:4500]), batch_size=100, shuffle=True)
    model = FraudNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(15):
        total = 0.0
        for xb, yb in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        if epoch % 3 == 2:
            with torch.no_grad():
                score = model(x[4500:])
            f1 = f1_score(y[4500:], score > 0)
            ap = average_precision_score(y[4500:], score)
            print(f"epoch {epoch + 1} loss {total / len(loader):.4f} f1 {f1:.3f} average precision {ap:.3f}")


if __name__ == "__main__":
    main()
