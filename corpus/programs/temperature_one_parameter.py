# Temperature scaling: one scalar, fitted on held-out logits with L-BFGS.
import torch
import torch.nn.functional as F
from sklearn.datasets import make_classification

torch.manual_seed(67)
X, y = make_classification(1500, 20, n_informative=6, n_classes=4, n_clusters_per_class=1, flip_y=0.2, random_state=67)
X, y = torch.tensor(X).float(), torch.tensor(y)

clf = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
opt = torch.optim.Adam(clf.parameters(), lr=3e-3)
for _ in range(150):
    rows = torch.randint(0, 900, (90,))
    loss = F.cross_entropy(clf(X[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
print("classifier trained, last batch loss", round(loss.item(), 4))

with torch.no_grad():
    logits = 3.0 * clf(X[900:])  # deliberately over-confident scores
log_t = torch.nn.Parameter(torch.zeros(()))
lbfgs = torch.optim.LBFGS([log_t], lr=0.2, max_iter=8)


def closure():
    lbfgs.zero_grad()
    loss = F.cross_entropy(logits / log_t.exp(), y[900:])
    loss.backward()
    return loss


print("before", F.cross_entropy(logits, y[900:]).item())
for it in range(30):
    loss = lbfgs.step(closure)
    if it % 5 == 0:
        print(f"iteration {it} nll {loss.item():.4f} temperature {log_t.exp().item():.3f}")
