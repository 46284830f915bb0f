import torch
from torch import nn
from sklearn.datasets import load_digits


class SignSTE(torch.autograd.Function):
    """sign in the forward pass, clipped identity in the backward pass"""

    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return torch.where(w >= 0, torch.ones_like(w), -torch.ones_like(w))

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * (w.abs() <= 1).to(grad.dtype)


class BinaryLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in).uniform_(-0.5, 0.5))
        self.scale = nn.Parameter(torch.full((n_out, 1), n_in**-0.5))

    def forward(self, x):
        return x @ (SignSTE.apply(self.weight) * self.scale).t()


def main():
    torch.manual_seed(163)
    d = load_digits()
    x = torch.tensor(d.data / 16, dtype=torch.float32)
    y = torch.tensor(d.target)
    model = nn.Sequential(BinaryLinear(64, 128), nn.BatchNorm1d(128), nn.Hardtanh(), BinaryLinear(128, 10))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(20):
        model.train()
        for idx in torch.randperm(1400).split(64):
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        if epoch % 4 == 3:
            with torch.no_grad():
                acc = (model(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
            print(f"epoch {epoch + 1} loss {loss.item():.4f} accuracy {acc:.3f}")


main()
