"""A small training, which two tests (packaging/newcomer.py and packaging/test_torch.py) run with and without foreshock.

Prints one line of JSON: the first loss, the last loss, a hash of all losses and of the final weights, and torch's
version. If the hashes of two runs are equal, their losses and weights are equal bit for bit. Needs Python 3.9 or later.
"""

import hashlib
import json
import time

import torch
from torch.nn import functional

# packaging/test_torch.py expects STEPS * LAYERS = 240 attention calls forward, and as many backward.
STEPS, LAYERS, WIDTH, HEADS, VOCABULARY = 120, 2, 32, 4, 64


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(self.norm(x)).view(batch, length, 3, HEADS, width // HEADS).to(torch.bfloat16)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).reshape(x.shape).to(x.dtype))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # with several threads, the order of sums may differ between runs
    blocks = [Block() for _ in range(LAYERS)]
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH), *blocks, torch.nn.Linear(WIDTH, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        # Four sequences that begin at random tokens and increase by 5: the next token can be learned.
        tokens = (torch.randint(VOCABULARY, (4, 1)) + 5 * torch.arange(49)) % VOCABULARY
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        time.sleep(0.05)  # the training must last some seconds: newcomer.py reads /metrics while it runs
    digest = hashlib.sha256(json.dumps(losses).encode())
    for value in model.state_dict().values():
        digest.update(bytes(value.contiguous().view(torch.uint8).flatten().tolist()))
    print(
        json.dumps({"first": losses[0], "last": losses[-1], "digest": digest.hexdigest(), "torch": torch.__version__})
    )


if __name__ == "__main__":
    main()
