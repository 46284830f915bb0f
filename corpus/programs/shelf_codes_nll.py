"""Shelf of a book from a bag of title words; labels of the library are noisy."""
import torch
from torch import nn

SHELVES, WORDS = 16, 120


class ShelfNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WORDS, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, SHELVES))

    def forward(self, x):
        return torch.softmax(self.body(x), dim=-1)


def books(n, profile):
    shelf = torch.randint(SHELVES, (n,))
    words = torch.bernoulli((0.1 + profile[shelf]).clamp(max=0.9))
    wrong = torch.rand(n) < 0.25
    label = torch.where(wrong, torch.randint(SHELVES, (n,)), shelf)
    return words, label, shelf


def main():
    torch.manual_seed(77)
    profile = 0.4 * (torch.rand(SHELVES, WORDS) < 0.15).float()
    words, label, _ = books(4000, profile)
    test_words, _, test_shelf = books(800, profile)
    net = ShelfNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.3)
    loss_fn = nn.NLLLoss()
    for epoch in range(15):
        net.train()
        total = 0
        for i in torch.randperm(4000).split(80):
            opt.zero_grad()
            loss = loss_fn(net(words[i]), label[i])
            loss.backward()
            opt.step()
            total += loss.item()
        net.eval()
        with torch.no_grad():
            acc = (net(test_words).argmax(1) == test_shelf).float().mean()
        print(f"epoch {epoch} loss {total / 50:.4f} accuracy on clean labels {acc:.3f}")


main()
