"""Non-negative factorisation of spectra: odd steps update the activations, even steps the dictionary."""
import torch
import torch.nn.functional as F

torch.manual_seed(367)
freq = torch.arange(50.0)
peaks = torch.tensor([6.0, 17.0, 29.0, 41.0])[:, None]
true_spectra = torch.exp(-0.5 * ((freq - peaks) / 2.5) ** 2)
amounts = torch.rand(300, 4) * (torch.rand(300, 4) < 0.6)
mixtures = amounts @ true_spectra + 0.01 * torch.randn(300, 50)

raw_w = torch.nn.Parameter(torch.randn(300, 4) * 0.5 - 1)
raw_h = torch.nn.Parameter(torch.randn(4, 50) * 0.5 - 1)
turns = [torch.optim.Adam([raw_w], lr=0.05), torch.optim.Adam([raw_h], lr=0.05)]


def objective():
    return (F.softplus(raw_w) @ F.softplus(raw_h) - mixtures).pow(2).mean()


for step in range(1, 1601):
    loss = objective()
    for opt in turns:
        opt.zero_grad()
    loss.backward()
    turns[step % 2].step()
    if step % 200 == 0:
        h = F.normalize(F.softplus(raw_h.detach()), dim=1)
        match = (h @ F.normalize(true_spectra, dim=1).t()).max(0).values.mean()
        print(f"step {step} loss {loss.item():.6f} (power {mixtures.pow(2).mean():.4f}, noise 0.0001) spectra matched {match:.3f}")
