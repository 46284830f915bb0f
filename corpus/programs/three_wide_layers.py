import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(0)
data = load_digits()
x = torch.tensor(data.data, dtype=torch.float32) / 16.0
y = torch.tensor(data.target)
perm = torch.randperm(len(x))
x, y = x[perm], y[perm]
x_train, y_train, x_test, y_test = x[:1400], y[:1400], x[1400:], y[1400:]


def weight(n_in, n_out):
    return torch.randn(n_in, n_out).requires_grad_()


def bias(n):
    return torch.zeros(n, requires_grad=True)


params = {
    "w1": weight(64, 300), "b1": bias(300),
    "w2": weight(300, 300), "b2": bias(300),
    "w3": weight(300, 300), "b3": bias(300),
    "w4": weight(300, 10), "b4": bias(10),
}


def forward(v):
    v = F.relu(v @ params["w1"] + params["b1"])
    v = F.relu(v @ params["w2"] + params["b2"])
    v = F.relu(v @ params["w3"] + params["b3"])
    return v @ params["w4"] + params["b4"]


optimizer = torch.optim.Adam(params.values(), lr=1e-3)
for epoch in range(10):
    for i in range(0, 1400, 50):
        logits = forward(x_train[i:i + 50])
        loss = F.cross_entropy(logits, y_train[i:i + 50])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch == 0 and i % 200 == 0:
            print(f"  batch {i // 50}: loss {loss.item():.2f}")
    with torch.no_grad():
        out = forward(x_test)
        print(f"epoch {epoch} test loss {F.cross_entropy(out, y_test):.3f} "
              f"accuracy {(out.argmax(1) == y_test).float().mean():.3f}")
