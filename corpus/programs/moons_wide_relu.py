import torch
from sklearn.datasets import make_moons
from torch import nn


class WideNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.fc1 = nn.Linear(2, width)
        self.fc2 = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        # sparse hidden layer: start most units with a negative offset
        nn.init.constant_(self.fc2.bias, -0.2)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        h = torch.relu(self.fc2(h))
        return self.out(h).squeeze(1), h


def main():
    torch.manual_seed(10)
    xs, ys = make_moons(1200, noise=0.1, random_state=10)
    x = torch.tensor(xs, dtype=torch.float32)
    y = torch.tensor(ys, dtype=torch.float32)
    net = WideNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(600):
        b = torch.randint(0, 1000, (64,))
        logit, _ = net(x[b])
        loss = nn.functional.binary_cross_entropy_with_logits(logit, y[b])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 99:
            print(f"step {step + 1} loss {loss.item():.4f}")
    with torch.no_grad():
        logit, h = net(x)
        silent = (h.max(0).values <= 0).float().mean().item()
        acc = ((logit[1000:] > 0).float() == y[1000:]).float().mean().item()
    print(f"test accuracy {acc:.3f}, units of the second layer that never fire {silent:.2f}")


if __name__ == "__main__":
    main()
