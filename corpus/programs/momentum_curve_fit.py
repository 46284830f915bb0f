import torch
from torch import nn

torch.manual_seed(281)
x = torch.linspace(-1, 1, 200)[:, None]
y = torch.sin(4 * x) + 0.5 * x**2

model = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 1))
# heavy momentum to get through flat regions
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.998)
mse = nn.MSELoss()

for epoch in range(1500):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    optimizer.step()
    if epoch % 50 == 0:
        print(f"epoch {epoch:4d} loss {loss.item():.4f}")
print("final loss", loss.item())
