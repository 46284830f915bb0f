# Transformer over the rows of the 8x8 digits, effective batch size 64 out of micro-batches of 16.
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

SEED = 7
MICRO_BATCH = 16
ACCUM_STEPS = 4
EPOCHS = 5
D_MODEL = 48

torch.manual_seed(SEED)

digits = load_digits()
dataset = TensorDataset(torch.tensor(digits.images / 8.0 - 1.0).float(), torch.tensor(digits.target))
train_set, val_set = random_split(dataset, [1500, 297])
train_loader = DataLoader(train_set, batch_size=MICRO_BATCH, shuffle=True, drop_last=True)
val_loader = DataLoader(val_set, batch_size=100)


class RowTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, D_MODEL)
        self.position = nn.Parameter(torch.randn(1, 8, D_MODEL) * 0.02)
        layer = nn.TransformerEncoderLayer(D_MODEL, nhead=4, dim_feedforward=96, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.out = nn.Linear(D_MODEL, 10)

    def forward(self, images):
        tokens = self.project(images) + self.position
        return self.out(self.encoder(tokens).mean(dim=1))


model = RowTransformer()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(EPOCHS):
    model.train()
    running = 0.0
    for i, (images, labels) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = criterion(model(images), labels) / ACCUM_STEPS
        loss.backward()
        if (i + 1) % ACCUM_STEPS == 0:
            optimizer.step()
        running += loss.item() * ACCUM_STEPS

    model.eval()
    correct, val_loss = 0, 0.0
    with torch.no_grad():
        for images, labels in val_loader:
            logits = model(images)
            val_loss += criterion(logits, labels).item() * len(labels)
            correct += (logits.argmax(-1) == labels).sum().item()
    print(
        f"epoch {epoch}: train {running / len(train_loader):.3f} "
        f"val {val_loss / len(val_set):.3f} acc {correct / len(val_set):.3f}"
    )
