"""Mean of many tiny per-example losses: the rate looks enormous, the step is not."""
import torch

torch.manual_seed(53)
# calibrate a sensor: y = gain * exp(-x / tau), readings in millivolt
x = torch.rand(256) * 5
readings = 2.4e-3 * torch.exp(-x / 1.7) + 2e-5 * torch.randn(256)

gain = torch.tensor(1.0e-3, requires_grad=True)
rate = torch.tensor(1.0, requires_grad=True)
optimizer = torch.optim.SGD([{"params": [gain], "lr": 0.5}, {"params": [rate], "lr": 4e5}])
for step in range(1, 1501):
    pick = torch.randint(0, 256, (64,))
    prediction = gain * torch.exp(-rate * x[pick])
    loss = (prediction - readings[pick]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 250 == 0:
        print(f"{step:5d} loss {loss.item():.3e} gain {gain.item():.5f} tau {1 / rate.item():.3f}")
