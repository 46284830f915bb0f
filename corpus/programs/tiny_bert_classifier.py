"""Small BERT from scratch: does the token 7 occur before the token 9?"""
import torch
from transformers import BertConfig, BertForSequenceClassification


def batch(n, length=10):
    ids = torch.randint(10, 30, (n, length))
    pos = torch.rand(n, length).topk(2, dim=1).indices
    ids[torch.arange(n), pos[:, 0]] = 7
    ids[torch.arange(n), pos[:, 1]] = 9
    lengths = torch.full((n,), length)
    extra = torch.randint(0, 4, (n,))
    ids = torch.cat([torch.full((n, 1), 1), ids, torch.zeros(n, 3, dtype=torch.long)], 1)
    for i in range(3):
        ids[extra > i, length + 1 + i] = 11
    return ids, (ids != 0).long(), (pos[:, 0] < pos[:, 1]).long()


def main():
    torch.manual_seed(239)
    config = BertConfig(
        vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
    )
    model = BertForSequenceClassification(config)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, 251):
        ids, mask, labels = batch(48)
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
        opt.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 50 == 0:
            print(f"step {step} loss {out.loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        ids, mask, labels = batch(500)
        acc = (model(input_ids=ids, attention_mask=mask).logits.argmax(1) == labels).float().mean().item()
    print(f"accuracy {acc:.3f}")


main()
