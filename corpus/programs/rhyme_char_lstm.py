"""Character model of a nursery rhyme with an LSTM; generate at the end."""
import torch
import torch.nn as nn

TEXT = ("row row row your boat gently down the stream merrily merrily merrily merrily life is but a dream "
        "twinkle twinkle little star how i wonder what you are up above the world so high ") * 12
chars = sorted(set(TEXT))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in TEXT])


def get_batch(size=24, block=32):
    ix = torch.randint(len(data) - block - 1, (size,))
    x = torch.stack([data[i:i + block] for i in ix])
    y = torch.stack([data[i:i + block] for i in ix])
    return x, y


class RhymeModel(nn.Module):
    def __init__(self, n, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(n, 24)
        self.lstm = nn.LSTM(24, hidden, batch_first=True)
        self.out = nn.Linear(hidden, n)

    def forward(self, x, state=None):
        h, state = self.lstm(self.emb(x), state)
        return self.out(h), state


torch.manual_seed(105)
model = RhymeModel(len(chars))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for it in range(1, 301):
    x, y = get_batch()
    logits, _ = model(x)
    loss = nn.functional.cross_entropy(logits.reshape(-1, len(chars)), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(f"iter {it} loss {loss.item():.4f}")

with torch.no_grad():
    x, y = data[:200][None], data[1:201][None]
    print("next character right:", (model(x)[0].argmax(-1) == y).float().mean().item())
    token, state, text = torch.tensor([[stoi["t"]]]), None, "t"
    for _ in range(40):
        logits, state = model(token, state)
        token = logits[:, -1].argmax(-1, keepdim=True)
        text += chars[token.item()]
print(text)
