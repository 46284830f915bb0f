"""Disease progression from ten blood values; train and validation loss every ten epochs."""
import torch
from torch import nn
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split


def load(seed):
    x, y = load_diabetes(return_X_y=True)
    xt, xv, yt, yv = train_test_split(x, y, test_size=0.4, random_state=seed)
    mx, sx, my, sy = xt.mean(0), xt.std(0), yt.mean(), yt.std()
    f = lambda a: torch.tensor(a, dtype=torch.float32)
    return f((xt - mx) / sx), f((yt - my) / sy)[:, None], f((xv - mx) / sx), f((yv - my) / sy)[:, None]


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        value = nn.functional.mse_loss(model(x), y).item()
    model.train()
    return value


def main():
    torch.manual_seed(251)
    xt, yt, xv, yv = load(4)
    model = nn.Sequential(nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(150):
        for idx in torch.randperm(len(xt)).split(33):
            loss = nn.functional.mse_loss(model(xt[idx]), yt[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        val = validate(model, xv, yv)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:3d} train {loss.item():.4f} val {val:.4f}")


main()
