import torch

torch.manual_seed(1)
x = torch.rand(200, 1) * 2 - 1
y = 3 * x + 2 + 0.05 * torch.randn(200, 1)

w = torch.randn(1, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
learning_rate = 0.05

for step in range(401):
    y_pred = x.mm(w) + b
    loss = (y_pred - y).pow(2).mean()
    loss.backward()
    w.data = w.data - learning_rate * w.grad.data
    b.data = b.data - learning_rate * b.grad.data
    w.grad.zero_()
    b.grad.zero_()
    if step % 20 == 0:
        print("step", step, "loss", round(loss.item(), 5), "w", round(w.item(), 3), "b", round(b.item(), 3))
