"""Attentional factorisation machine on sparse click data."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionalFM(nn.Module):
    def __init__(self, field_dims, dim=12, attn=16, p=0.4):
        super().__init__()
        total = sum(field_dims)
        self.register_buffer("offset", torch.tensor([0] + list(field_dims[:-1])).cumsum(0))
        self.embedding = nn.Embedding(total, dim)
        self.linear = nn.Embedding(total, 1)
        nn.init.normal_(self.embedding.weight, std=0.3)
        nn.init.zeros_(self.linear.weight)
        self.attention = nn.Linear(dim, attn)
        self.projection = nn.Linear(attn, 1, bias=False)
        self.fc = nn.Linear(dim, 1)
        self.p = p
        f = len(field_dims)
        self.row, self.col = torch.triu_indices(f, f, 1)

    def forward(self, fields):
        ids = fields + self.offset
        e = self.embedding(ids)
        inner = e[:, self.row] * e[:, self.col]
        score = F.softmax(self.projection(F.relu(self.attention(inner))), dim=1)
        score = F.dropout(score, self.p, self.training)
        pooled = F.dropout((score * inner).sum(1) * len(self.row), self.p, self.training)
        return (self.linear(ids).sum(1) + self.fc(pooled)).squeeze(-1)


def clicks(n, dims, tables):
    ids = torch.stack([torch.randint(0, d, (n,)) for d in dims], 1)
    a, b, c, d = (t[ids[:, i]] for i, t in enumerate(tables))
    logit = 1.5 * ((a * b).sum(1) + (c * d).sum(1))
    return ids, (torch.sigmoid(logit) > 0.5).float()


torch.manual_seed(13)
dims = [20, 25, 15, 10]
tables = [torch.randn(d, 3) for d in dims]
tr_ids, tr_y = clicks(4000, dims, tables)
te_ids, te_y = clicks(1000, dims, tables)
model = AttentionalFM(dims)
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(10):
    model.train()
    for idx in torch.randperm(4000).split(100):
        loss = F.binary_cross_entropy_with_logits(model(tr_ids[idx]), tr_y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        out = model(te_ids)
        print(f"epoch {epoch} train {loss.item():.3f} test {F.binary_cross_entropy_with_logits(out, te_y).item():.3f} "
              f"acc {((out > 0) == (te_y > 0.5)).float().mean().item():.3f}")
