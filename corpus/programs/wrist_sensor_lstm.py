# %% [markdown]
# Activity from a wrist sensor: 40 readings of 3 axes, five activities.

# %%
import math
import torch
import torch.nn as nn

torch.manual_seed(21)
T, AXES, CLASSES = 40, 3, 5

# %%
def simulate(n):
    y = torch.randint(0, CLASSES, (n,))
    t = torch.arange(T).float()
    freq = 0.15 + 0.12 * y[:, None, None]
    phase = torch.rand(n, 1, AXES) * 2 * math.pi
    amp = 0.7 + 0.6 * torch.rand(n, 1, AXES)
    x = amp * torch.sin(freq * t[None, :, None] + phase)
    return x + 0.2 * torch.randn(n, T, AXES), y

x_train, y_train = simulate(2400)
x_test, y_test = simulate(480)

# %%
class ActivityLSTM(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(AXES, hidden)
        self.fc = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        # the lstm wants (seq, batch, features)
        x = x.permute(1, 0, 2)
        out, (h, c) = self.lstm(x)
        return self.fc(h[-1])

# %%
net = ActivityLSTM()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
ce = nn.CrossEntropyLoss()
history = []
for epoch in range(10):
    order = torch.randperm(len(x_train))
    epoch_loss = 0
    for i in range(0, len(order), 60):
        b = order[i:i + 60]
        opt.zero_grad()
        loss = ce(net(x_train[b]), y_train[b])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        epoch_loss += loss.item()
    history.append(epoch_loss / 40)
    print("epoch", epoch, "loss", round(history[-1], 4))

# %%
with torch.no_grad():
    print("test accuracy", (net(x_test).argmax(1) == y_test).float().mean().item())
