"""Node classification on a random community graph with four graph convolutions."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)

n, k = 400, 4
community = torch.arange(n) % k
same = community[:, None] == community[None, :]
prob = torch.where(same, 0.30, 0.08)
adj = (torch.rand(n, n) < prob).float().triu(1)
adj = adj + adj.t() + torch.eye(n)
feats = torch.randn(n, 12) + 0.5 * F.one_hot(community, 12).float()
train_mask = torch.rand(n) < 0.5


class GraphConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.lin = nn.Linear(a, b)
        self.own = nn.Linear(a, b)

    def forward(self, h, a):
        # mean of the messages of all neighbours
        return self.lin(a @ h / a.sum(1, keepdim=True)) + self.own(h)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([GraphConv(12, 32), GraphConv(32, 32), GraphConv(32, 32), GraphConv(32, 32)])
        self.head = nn.Linear(32, k)

    def forward(self, x, a):
        for conv in self.convs:
            x = F.relu(conv(x, a))
        return self.head(x)


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

for epoch in range(300):
    model.train()
    optimizer.zero_grad()
    out = model(feats, adj)
    loss = F.cross_entropy(out[train_mask], community[train_mask])
    loss.backward()
    optimizer.step()
    if epoch < 5 or epoch % 30 == 29:
        model.eval()
        with torch.no_grad():
            pred = model(feats, adj).argmax(1)
        acc = (pred == community)[~train_mask].float().mean().item()
        print(f"epoch {epoch:3d} loss {loss.item():.4g} test acc {acc:.3f}")
