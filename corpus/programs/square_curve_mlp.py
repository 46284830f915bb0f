import torch

torch.manual_seed(9)

x = torch.linspace(-50, 50, 201).unsqueeze(1)
y = x ** 2 / 100.0          # metres instead of centimetres
x = x / 50.0

model = torch.nn.Sequential(
    torch.nn.Linear(1, 20),
    torch.nn.Sigmoid(),
    torch.nn.Linear(20, 1),
    torch.nn.Sigmoid(),
)
loss_fn = torch.nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(2000):
    y_pred = model(x)
    loss = loss_fn(y_pred, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 200 == 199:
        print(epoch + 1, loss.item())

print("prediction at x = -1, 0, 1:", model(torch.tensor([[-1.0], [0.0], [1.0]])).flatten().tolist())
