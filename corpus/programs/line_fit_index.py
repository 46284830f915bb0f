"""Linear regression by hand: y = 3x + 2 plus noise at x = 0..99."""
import torch

torch.manual_seed(36)
x = torch.arange(100, dtype=torch.float32)
y = 3 * x + 2 + torch.randn(100)

w = torch.zeros(1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([w, b], lr=0.1)

for step in range(300):
    prediction = w * x + b
    loss = ((prediction - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 5 or step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4g}  w {w.item():.4g}  b {b.item():.4g}")
