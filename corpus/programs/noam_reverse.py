"""A transformer encoder learns to reverse a sequence; learning rate schedule of "Attention is all you need"."""

import torch
from torch import nn

VOCAB, LENGTH, D_MODEL = 12, 8, 64
BATCH, STEPS, WARMUP = 64, 300, 100


class Reverser(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, D_MODEL)
        self.positions = nn.Embedding(LENGTH, D_MODEL)
        layer = nn.TransformerEncoderLayer(
            D_MODEL, nhead=4, dim_feedforward=128, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(D_MODEL)
        self.generator = nn.Linear(D_MODEL, VOCAB)

    def forward(self, src):
        x = self.tokens(src) + self.positions(torch.arange(src.size(1)))
        return self.generator(self.norm(self.encoder(x)))


def rate(step, model_size=D_MODEL, warmup=WARMUP):
    step = max(step, 1)
    return model_size**-0.5 * min(step**-0.5, step * warmup**-1.5)


def make_batch(generator):
    src = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=generator)
    return src, src.flip(1)


def train():
    torch.manual_seed(5)
    rng = torch.Generator().manual_seed(99)
    model = Reverser()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=rate)
    for step in range(1, STEPS + 1):
        src, tgt = make_batch(rng)
        logits = model(src)
        loss = criterion(logits.view(-1, VOCAB), tgt.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 30 == 0:
            accuracy = (logits.argmax(-1) == tgt).float().mean().item()
            print(f"step {step:3d} loss {loss.item():.4f} token accuracy {accuracy:.3f}")
    model.eval()
    with torch.no_grad():
        src, tgt = make_batch(rng)
        print("test token accuracy", (model(src).argmax(-1) == tgt).float().mean().item())


if __name__ == "__main__":
    train()
