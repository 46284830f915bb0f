# tiny image codec: encoder to 6 numbers and back, on 8x8 digits
import torch
from torch import nn, optim
from sklearn.datasets import load_digits

torch.manual_seed(0)
images = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1) / 16
train, test = images[:1500], images[1500:]

encoder = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 6))
decoder = nn.Sequential(nn.Linear(6, 128), nn.SiLU(), nn.Linear(128, 64), nn.Sigmoid())

enc_params = encoder.parameters()
dec_params = decoder.parameters()
print("encoder size:", sum(p.numel() for p in enc_params))
print("codec with a %d-number bottleneck" % 6)

opt = optim.Adam([*enc_params, *dec_params], lr=3e-3)

for epoch in range(16):
    order = torch.randperm(len(train))
    for chunk in order.split(100):
        x = train[chunk]
        opt.zero_grad()
        recon = decoder(encoder(x))
        loss = ((recon - x) ** 2).mean()
        loss.backward()
        opt.step()
    with torch.no_grad():
        val = ((decoder(encoder(test)) - test) ** 2).mean().item()
    print(f"epoch {epoch:2d} train {loss.item():.4f} val {val:.4f}")
print("FINAL", val)
