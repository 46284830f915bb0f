"""One-step forecast of a chaotic map from its last three values."""
import numpy as np
import torch


def logistic_series(n, r=3.9, x0=0.37):
    xs = np.empty(n, dtype=np.float32)
    xs[0] = x0
    for i in range(1, n):
        xs[i] = r * xs[i - 1] * (1 - xs[i - 1])
    return xs


class Forecaster:
    def __init__(self, lags=3, hidden=40, lr=0.003):
        self.lags = lags
        self.net = torch.nn.Sequential(
            torch.nn.Linear(lags, hidden),
            torch.nn.BatchNorm1d(hidden),
            torch.nn.Linear(hidden, hidden),
            torch.nn.BatchNorm1d(hidden),
            torch.nn.Linear(hidden, 1),
        )
        self.opt = torch.optim.RMSprop(self.net.parameters(), lr=lr)

    def windows(self, s):
        x = np.stack([s[i:len(s) - self.lags + i] for i in range(self.lags)], 1)
        return torch.from_numpy(x), torch.from_numpy(s[self.lags:]).unsqueeze(1)

    def fit(self, series, epochs=20, batch=64):
        x, y = self.windows(series)
        for ep in range(epochs):
            self.net.train()
            acc = []
            for idx in torch.randperm(len(x)).split(batch):
                loss = torch.nn.functional.mse_loss(self.net(x[idx]), y[idx])
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                acc.append(loss.item())
            if ep % 4 == 3:
                print(f"[{ep + 1}/{epochs}] mse {np.mean(acc):.5f}")
        return self

    def score(self, series):
        x, y = self.windows(series)
        self.net.eval()
        with torch.no_grad():
            res = (self.net(x) - y).pow(2).mean() / y.var(unbiased=False)
        return 1 - res.item()


torch.manual_seed(12)
s = logistic_series(2600)
s = (s - s.mean()) / s.std()
model = Forecaster().fit(s[:2000])
print("R2 on the rest of the series:", round(model.score(s[2000:]), 3))
