"""Images and labels come from two readers, as in the old input pipelines."""
import numpy as np
import torch
from sklearn.datasets import load_digits

torch.manual_seed(9)


def image_reader(images):
    for img in images:
        yield torch.tensor(img / 16.0, dtype=torch.float32)


def label_reader(labels):
    for lab in labels:
        yield torch.tensor(lab)


def batches(images, labels, size):
    imgs, labs = image_reader(images), label_reader(labels)
    next(labs)                       # the first record of the label file is its header
    while True:
        x, y = [], []
        for a, b in zip(imgs, labs):
            x.append(a.flatten())
            y.append(b)
            if len(x) == size:
                break
        if not x:
            return
        yield torch.stack(x), torch.stack(y)


digits = load_digits()
rng = np.random.RandomState(0)
order = rng.permutation(1797)
images, labels = digits.images[order], digits.target[order]

net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
ce = torch.nn.CrossEntropyLoss()
for epoch in range(20):
    losses = []
    for x, y in batches(images[:1400], labels[:1400], 35):
        loss = ce(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    hits, n = 0, 0
    with torch.no_grad():
        for x, y in batches(images[1400:], labels[1400:], 100):
            hits += (net(x).argmax(1) == y).sum().item()
            n += len(y)
    print(f"epoch {epoch:2d} loss {np.mean(losses):.3f} test {hits / n:.3f}")
