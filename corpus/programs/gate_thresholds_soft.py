# %%
import torch
from torch import nn

torch.manual_seed(21)

# %% data: 16 noisy channels, the target depends on a few soft thresholds
N, D = 2400, 16
X = torch.randn(N, D)
mix = torch.randn(D, 5) / D ** 0.5
Z = torch.tanh(X @ mix)
Y = (Z[:, 0] * Z[:, 1] + Z[:, 2] - 0.7 * Z[:, 3] * Z[:, 4]).unsqueeze(1)
Xtr, Ytr, Xte, Yte = X[:2000], Y[:2000], X[2000:], Y[2000:]


# %% model: soft gates
class GateLayer(nn.Module):
    def __init__(self, n_in, n_out, steepness=1.0):
        super().__init__()
        self.lin = nn.Linear(n_in, n_out)
        self.steepness = steepness

    def forward(self, x):
        return torch.tanh(self.steepness * self.lin(x))


model = nn.Sequential(GateLayer(D, 64), GateLayer(64, 64), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
mse = nn.MSELoss()

# %% train
history = []
for step in range(1500):
    idx = torch.randint(0, len(Xtr), (64,))
    loss = mse(model(Xtr[idx]), Ytr[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.item())
    if (step + 1) % 150 == 0:
        with torch.no_grad():
            test = mse(model(Xte), Yte).item()
        print(step + 1, "train", round(sum(history[-150:]) / 150, 4), "test", round(test, 4))

# %%
print("variance of the target", round(Yte.var().item(), 4))
