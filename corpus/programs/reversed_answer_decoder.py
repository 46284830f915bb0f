"""Fine-tune on answers only: the prompt is not scored, sequences are cut at MAX_LEN."""
import torch
import torch.nn as nn

MAX_LEN, PROMPT, ANSWER, V, IGNORE = 28, 24, 4, 16, -100


class Causal(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, dim), nn.Embedding(64, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, V)

    def forward(self, ids):
        t = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        return self.head(self.enc(self.tok(ids) + self.pos(torch.arange(t)), mask=mask))


def encode(n):
    prompt = torch.randint(0, V, (n, PROMPT))
    answer = prompt[:, :ANSWER].flip(1)
    ids = torch.cat([prompt, answer], 1)
    labels = ids.clone()
    labels[:, :PROMPT] = IGNORE
    return ids[:, :MAX_LEN], labels[:, :MAX_LEN]


def loss_on_answers(logits, labels):
    logits, labels = logits[:, :-1], labels[:, 1:]
    per_token = nn.functional.cross_entropy(logits.reshape(-1, V), labels.reshape(-1), ignore_index=IGNORE, reduction="none")
    counted = (labels != IGNORE).sum().clamp(min=1)
    return per_token.sum() / counted


torch.manual_seed(106)
model = Causal()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
for step in range(1, 201):
    ids, labels = encode(32)
    loss = loss_on_answers(model(ids), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
