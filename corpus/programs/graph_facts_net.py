"""Answers to questions over a small random graph, two rounds of message passing."""
import torch
import torch.nn as nn


class MessageRound(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.own, self.other = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, h, adj):
        return torch.relu(self.own(h) + self.other(adj @ h))


class AnswerNet(nn.Module):
    def __init__(self, feat, dim, answers):
        super().__init__()
        self.embed = nn.Linear(feat, dim)
        self.r1, self.r2 = MessageRound(dim), MessageRound(dim)
        self.readout = nn.Linear(dim, answers)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, adj):
        h = torch.relu(self.embed(x))
        h = self.r2(self.r1(h, adj), adj)
        return self.softmax(self.readout(h))


def graph(nodes, feat, answers):
    adj = (torch.rand(nodes, nodes) < 4 / nodes).float()
    adj = ((adj + adj.t()) > 0).float()
    adj = adj / adj.sum(1, keepdim=True).clamp(min=1)
    x = torch.randn(nodes, feat)
    label = ((x + 2 * adj @ x) @ torch.randn(feat, answers)).argmax(1)
    return x, adj, label


torch.manual_seed(70)
x, adj, y = graph(900, 8, 10)
train_nodes, test_nodes = torch.arange(0, 700), torch.arange(700, 900)
net = AnswerNet(8, 48, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for epoch in range(250):
    net.train()
    optimizer.zero_grad()
    out = net(x, adj)
    loss = criterion(out[train_nodes], y[train_nodes])
    loss.backward()
    optimizer.step()
    if epoch % 50 == 49:
        acc = (out.argmax(1) == y).float()
        print(f"epoch {epoch + 1} loss {loss.item():.4f} train {acc[train_nodes].mean():.3f} test {acc[test_nodes].mean():.3f}")
