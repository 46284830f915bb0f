import torch

torch.manual_seed(2)
x = torch.linspace(-3, 3, 25)
y = 1.5 * x ** 2 - 2.0 * x + 0.5 + 0.2 * torch.randn(25)

A = torch.zeros(1, requires_grad=True)
B = torch.zeros(1, requires_grad=True)
C = torch.zeros(1, requires_grad=True)
opt = torch.optim.SGD([A, B, C], lr=0.01)

for it in range(200):
    opt.zero_grad()
    fit = A * x ** 2 + B * x + C
    loss = torch.mean((fit - y) ** 2)
    loss.backward()
    opt.step()
    if it % 10 == 0 or it < 8:
        print(it, f"{loss.item():.4g}", f"A={A.item():.3g} B={B.item():.3g} C={C.item():.3g}")
