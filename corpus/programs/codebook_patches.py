# %% learn a small codebook for 8x8 digit images
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(38)
images = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1) / 16

# %%
SLOTS, CODES, DIM = 6, 8, 16


class DiscreteAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, SLOTS * CODES))
        self.codes = nn.Embedding(CODES * SLOTS, DIM)
        self.decoder = nn.Sequential(nn.Linear(SLOTS * DIM, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, x):
        scores = self.encoder(x).view(-1, SLOTS, CODES)
        chosen = scores.argmax(-1)
        z = self.codes(chosen + CODES * torch.arange(SLOTS))
        return self.decoder(z.flatten(1)), chosen


net = DiscreteAutoencoder()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)

# %%
train, test = images[:1500], images[1500:]
for epoch in range(30):
    tot = 0.0
    for idx in torch.randperm(len(train)).split(50):
        rec, _ = net(train[idx])
        loss = F.mse_loss(rec, train[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        tot += loss.item() * len(idx) / len(train)
    if epoch % 5 == 4:
        with torch.no_grad():
            rec, chosen = net(test)
        used = len(torch.unique(chosen + CODES * torch.arange(SLOTS)))
        print(f"epoch {epoch + 1} train {tot:.4f} test {F.mse_loss(rec, test).item():.4f} codes used {used}/{SLOTS * CODES}")

# %%
print("pixel variance", round(test.var(0).mean().item(), 4))
