"""y = x^2 on [-100, 100) with a sigmoid layer and an ELU layer."""
import torch
from torch import nn

torch.manual_seed(28)


class Parabola(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 50)
        self.b = nn.Linear(50, 50)
        self.c = nn.Linear(50, 1)

    def forward(self, x):
        h = torch.sigmoid(self.a(x))
        h = nn.functional.elu(self.b(h))
        return self.c(h)


x = torch.arange(-100, 100, 0.5).view(-1, 1)
y = x.pow(2)
net = Parabola()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(1200):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    if epoch % 200 == 199:
        r2 = 1 - loss.item() / y.var(unbiased=False).item()
        print(f"epoch {epoch + 1:5d} loss {loss.item():.1f} R2 {r2:.3f}")
