"""A tiny GPT-2 with random weights learns a periodic language of digits."""
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel


class Sentences(Dataset):
    def __init__(self, n, length=20):
        start = torch.randint(0, 10, (n, 1))
        noise = (torch.rand(n, length + 1) < 0.15) * torch.randint(1, 10, (n, length + 1))
        step = 3 + noise
        self.ids = (start + step.cumsum(1)) % 10

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        s = self.ids[i]
        return {"input_ids": s[:-1], "labels": s[:-1]}


def main():
    torch.manual_seed(104)
    config = GPT2Config(vocab_size=10, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    loader = DataLoader(Sentences(2400), batch_size=24, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for epoch in range(2):
        for step, batch in enumerate(loader):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    model.eval()
    test = Sentences(300).ids
    with torch.no_grad():
        nxt = model(test[:, :-1]).logits[:, -1].argmax(-1)
    print("next digit right:", (nxt == test[:, -1]).float().mean().item())


if __name__ == "__main__":
    main()
