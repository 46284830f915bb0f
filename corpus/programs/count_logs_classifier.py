# %% word counts of mails, as logarithms
import torch
from torch import nn

torch.manual_seed(66)

# %%
def mails(n):
    spam = (torch.rand(n) < 0.4).float()
    rate = 6.0 + torch.randn(30).abs().cumsum(0)[None] / 2
    shift = 1 + spam[:, None] * torch.linspace(-0.3, 0.3, 30)
    counts = torch.poisson(rate * shift)
    return torch.log(counts), spam

x, y = mails(4000)
x = x - x[torch.isfinite(x).all(1)].mean(0)

# %%
class SpamNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(30, 40), nn.Linear(40, 20)])
        self.last = nn.Linear(20, 1)

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.elu(layer(x))
        return self.last(x)[:, 0]

net = SpamNet()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

# %%
for it in range(400):
    b = torch.randint(0, 3500, (64,))
    loss = nn.functional.binary_cross_entropy_with_logits(net(x[b]), y[b])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(it, loss.item())
# %%
with torch.no_grad():
    print("held out accuracy", ((net(x[3500:]) > 0).float() == y[3500:]).float().mean().item())
