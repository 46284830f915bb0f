"""Twelve-layer frame classifier on synthetic spectra (four phones)."""
import torch
import torch.nn.functional as F


class DNN(torch.nn.Module):
    def __init__(self, sizes, act=torch.sigmoid):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.act = act

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.act(layer(x))
        return self.layers[-1](x)


def spectra(n, means):
    y = torch.randint(0, len(means), (n,))
    return means[y] + 0.8 * torch.randn(n, means.shape[1]), y


def frame_error(net, x, y):
    with torch.no_grad():
        return (net(x).argmax(1) != y).float().mean().item()


torch.manual_seed(74)
means = torch.randn(4, 16)
net = DNN([16] * 13 + [4])
opt = torch.optim.SGD(net.parameters(), lr=0.1)
dev = spectra(800, means)
for epoch in range(10):
    for _ in range(60):
        x, y = spectra(64, means)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f} frame error {frame_error(net, *dev):.3f}")
