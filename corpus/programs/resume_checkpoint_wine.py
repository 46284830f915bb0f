import io

import torch
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(13, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 3))


class Run:
    def __init__(self):
        self.model = make_model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=200, gamma=0.5)
        self.step = 0

    def save(self):
        f = io.BytesIO()
        torch.save({"m": self.model.state_dict(), "o": self.optimizer.state_dict(), "s": self.scheduler.state_dict(), "step": self.step}, f)
        return f.getvalue()

    @classmethod
    def load(cls, blob):
        run = cls()
        state = torch.load(io.BytesIO(blob))
        run.model.load_state_dict(state["m"])
        run.optimizer.load_state_dict(state["o"])
        run.scheduler.load_state_dict(state["s"])
        run.step = state["step"]
        return run

    def advance(self, x, y, n):
        for _ in range(n):
            idx = torch.randint(0, len(x), (32,))
            loss = nn.functional.cross_entropy(self.model(x[idx]), y[idx])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(79)
    wine = load_wine()
    x = torch.tensor(StandardScaler().fit_transform(wine.data), dtype=torch.float32)
    y = torch.tensor(wine.target)
    p = torch.randperm(len(x))
    x, y, xv, yv = x[p[:130]], y[p[:130]], x[p[130:]], y[p[130:]]
    run = Run()
    for leg in range(5):
        loss = run.advance(x, y, 120)
        with torch.no_grad():
            acc = (run.model(xv).argmax(1) == yv).float().mean()
        print(f"leg {leg} step {run.step} loss {loss:.4f} valid acc {acc:.3f}")
        run = Run.load(run.save())
