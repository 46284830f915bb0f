import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Distiller(nn.Module):
    """Holds both networks so that they move together; the teacher never trains here."""

    def __init__(self, teacher, student, temperature=3.0):
        super().__init__()
        self.teacher = teacher
        self.student = student
        self.t = temperature
        for p in self.teacher.parameters():
            p.requires_grad = False

    def loss(self, x, y):
        self.teacher.eval()
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.t, dim=1)
        logits = self.student(x)
        kd = F.kl_div(F.log_softmax(logits / self.t, dim=1), soft, reduction="batchmean") * self.t**2
        return 0.8 * kd + 0.2 * F.cross_entropy(logits, y)


def batches(x, y, size):
    for idx in torch.randperm(len(x)).split(size):
        yield x[idx], y[idx]


def main():
    torch.manual_seed(73)
    d = load_digits()
    x, y = torch.tensor(d.data / 16, dtype=torch.float32), torch.tensor(d.target)
    x, y, xt, yt = x[:1400], y[:1400], x[1400:], y[1400:]
    teacher = mlp(64, 128, 128, 10)
    opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(12):
        for xb, yb in batches(x, y, 64):
            loss = F.cross_entropy(teacher(xb), yb)
            opt.zero_grad(); loss.backward(); opt.step()
    print(f"teacher accuracy {(teacher(xt).argmax(1) == yt).float().mean():.3f}")

    pair = Distiller(teacher, mlp(64, 16, 10))
    opt = torch.optim.Adam(pair.student.parameters(), lr=5e-3)
    for epoch in range(25):
        for xb, yb in batches(x, y, 64):
            loss = pair.loss(xb, yb)
            opt.zero_grad(); loss.backward(); opt.step()
        if epoch % 5 == 4:
            acc = (pair.student(xt).argmax(1) == yt).float().mean()
            print(f"student epoch {epoch + 1} loss {loss.item():.4f} accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
