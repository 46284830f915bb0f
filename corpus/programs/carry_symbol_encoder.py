"""Can the encoder carry the first symbol of a sequence to its last position?"""
import torch
from torch import nn

VOCAB, LENGTH, DIM = 8, 10, 32


class Recall(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(LENGTH, DIM) * 0.1)
        layer = nn.TransformerEncoderLayer(DIM, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        h = self.encoder(h)
        return self.head(h[:, -1])


def main():
    torch.manual_seed(5)
    model = Recall()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for step in range(500):
        ids = torch.randint(0, VOCAB, (32, LENGTH))
        loss = criterion(model(ids), ids[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == 499:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        ids = torch.randint(0, VOCAB, (200, LENGTH))
        acc = (model(ids).argmax(-1) == ids[:, 0]).float().mean().item()
    print(f"recall accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
