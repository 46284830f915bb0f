"""Intent of short commands: embedding, convolutions over words, max pooling."""
import random
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


N_INTENTS, VOCAB, LEN = 20, 400, 10


def command(intent):
    words = [random.randrange(VOCAB) for _ in range(LEN)]
    at = random.randrange(LEN - 1)
    words[at], words[at + 1] = 10 + intent, 40 + (intent * 7) % N_INTENTS
    return torch.tensor(words), intent


class TextCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.convs = nn.ModuleList(nn.Conv1d(32, 32, k) for k in (1, 2, 3))
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(96, N_INTENTS)

    def forward(self, words):
        e = self.embed(words).transpose(1, 2)
        h = torch.cat([F.relu(c(e)).amax(2) for c in self.convs], 1)
        return self.fc(self.dropout(h))


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()

    def train(self, loader):
        self.model.train()
        losses = []
        for words, intent in loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(words), intent)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    @torch.no_grad()
    def accuracy(self, loader):
        self.model.eval()
        return sum((self.model(w).argmax(1) == i).sum().item() for w, i in loader) / len(loader.dataset)


def main():
    random.seed(72)
    torch.manual_seed(72)
    data = [command(random.randrange(N_INTENTS)) for _ in range(2500)]
    train, test = DataLoader(data[:2000], batch_size=50, shuffle=True), DataLoader(data[2000:], batch_size=100)
    trainer = Trainer(TextCNN(), lr=0.1)
    for epoch in range(7):
        print(f"epoch {epoch} loss {trainer.train(train):.3f} test accuracy {trainer.accuracy(test):.3f}")


if __name__ == "__main__":
    main()
