"""One small training of the kind that is named: python small_training.py KIND STEPS. Tells its losses and bits.

A kind is a generator: it sets up, and each next() takes one training step and yields its loss. What it trains is in
`models`, so that the bits at the end can be compared.
"""

import itertools
import sys
from collections.abc import Iterator

import torch
from tiny_gpt import VOCABULARY, Batches, TinyGpt, fingerprint, loss_of, set_up, tell
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Losses = Iterator[torch.Tensor]
WIDTH, HEADS, LENGTH = 32, 4, 32
models: list[nn.Module] = []


def keep(model: nn.Module) -> nn.Module:
    models.append(model)
    return model


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int = HEADS, **more) -> torch.Tensor:
    split = [x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value)]
    return functional.scaled_dot_product_attention(*split, **more).transpose(1, 2).flatten(2)


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def gpt(optimizer=torch.optim.AdamW, *, pieces: int = 1, clip: bool = False, rate: float = 1e-3, **options) -> Losses:
    model, batches = keep(TinyGpt(layers=2, **options)), Batches(batch=4, length=LENGTH)
    stepper = optimizer(model.parameters(), lr=rate)
    while True:
        stepper.zero_grad()
        losses = []
        for _ in range(pieces):
            losses.append(loss_of(model, batches()))
            (losses[-1] / pieces).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        yield sum(losses) / pieces


def gpt_of_two_forward_passes() -> Losses:
    """Both forward passes come before the first backward pass, as with pairs of inputs."""
    model, batches = keep(TinyGpt(layers=2)), Batches(length=LENGTH)
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        optimizer.zero_grad()
        losses = [loss_of(model, batches()) for _ in range(2)]
        for loss in losses:
            (loss / 2).backward()
        optimizer.step()
        yield sum(losses) / 2


def gpt_of_two_optimizers() -> Losses:
    model, batches = keep(TinyGpt(layers=2)), Batches(length=LENGTH)
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    first, second = torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(others, lr=1e-3)
    while True:
        second.zero_grad()
        yield descend(first, loss_of(model, batches()))
        second.step()


def gpt_scaled() -> Losses:
    model, batches = keep(TinyGpt(layers=2)), Batches(length=LENGTH)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    while True:
        optimizer.zero_grad()
        loss = loss_of(model, batches())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss


def gpt_lbfgs() -> Losses:
    model, batches = keep(TinyGpt(layers=2)), Batches(length=LENGTH)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    while True:
        batch, losses = batches(), []

        def closure(batch=batch, losses=losses):
            optimizer.zero_grad()
            losses.append(loss_of(model, batch))
            losses[-1].backward()
            return losses[-1]

        optimizer.step(closure)
        yield sum(losses) / len(losses)


def gpt_compiled() -> Losses:
    model, batches = keep(TinyGpt(layers=2)), Batches(length=LENGTH)
    optimizer, compiled = torch.optim.AdamW(model.parameters()), torch.compile(model, backend="aot_eager")
    while True:
        yield descend(optimizer, loss_of(compiled, batches()))


def hand_written() -> Losses:
    model, batches = keep(TinyGpt(layers=2)), Batches(length=LENGTH)
    while True:
        loss = loss_of(model, batches())
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        yield loss


def functional_update() -> Losses:
    model, batches = keep(TinyGpt(layers=2)), Batches(length=LENGTH)
    while True:
        batch = batches()
        weights = {name: p.detach() for name, p in model.named_parameters()}

        def loss_with(weights, batch=batch):
            logits = torch.func.functional_call(model, weights, (batch[:, :-1],))
            return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

        gradients, loss = torch.func.grad_and_value(loss_with)(weights)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.1 * gradients[name]
        yield loss


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A, self.lora_B = (
            nn.ModuleDict({"default": nn.Linear(*size, bias=False)}) for size in ((WIDTH, 4), (4, WIDTH))
        )
        nn.init.normal_(self.lora_B["default"].weight, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + 2.0 * self.lora_B["default"](self.lora_A["default"](x))


def lora(recompute: str | None = None) -> Losses:
    model, batches = keep(TinyGpt(layers=3, recompute=recompute)), Batches(length=LENGTH)
    model.requires_grad_(False)
    for block in model.blocks:
        block.query, block.value = Lora(block.query), Lora(block.value)
    if recompute is not None:  # as PEFT does: or nothing below would need gradients
        model.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    while True:
        yield descend(optimizer, loss_of(model, batches()))


def encoder(pieces: int = 1) -> Losses:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True)
    model = keep(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True:
        optimizer.zero_grad()
        losses = [model(torch.randn(4, LENGTH, WIDTH)).square().mean() for _ in range(pieces)]
        for loss in losses:
            (loss / pieces).backward()
        optimizer.step()
        yield sum(losses) / pieces


def translation() -> Losses:
    def make() -> nn.Transformer:
        return nn.Transformer(WIDTH, HEADS, 1, 1, 64, dropout=0.0, batch_first=True)

    model = keep(nn.ModuleList(make() for _ in range(2)))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    while True:
        source, target = torch.randn(2, 4, LENGTH, WIDTH)
        for each in model:
            target = each(source, target)
        yield descend(optimizer, functional.l1_loss(target, source))


class Mixer(nn.Module):
    """Attention of a pixel, as diffusion models have it: to itself, then to a condition."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("attn1", "attn2"):
            setattr(self, name, nn.ModuleDict({w: nn.Linear(WIDTH, WIDTH) for w in ("to_q", "to_k", "to_v", "to_out")}))
        self.ff = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        for attention, other in ((self.attn1, x), (self.attn2, condition)):
            x = x + attention["to_out"](
                attend(attention["to_q"](x), attention["to_k"](other), attention["to_v"](other))
            )
        return x + self.ff(x)


def diffusion() -> Losses:
    def level(count: int) -> nn.ModuleDict:
        return nn.ModuleDict(
            {"attentions": nn.ModuleList(nn.ModuleDict({"transformer_blocks": nn.ModuleList([Mixer()])})
                                         for _ in range(count))}
        )  # fmt: skip

    model = keep(nn.ModuleDict({
        "down_blocks": nn.ModuleList([level(1), level(1)]), "mid_block": level(1),
        "up_blocks": nn.ModuleList([level(2)]),
    }))  # fmt: skip
    levels = [*model["down_blocks"], model["mid_block"], *model["up_blocks"]]
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    while True:
        x, condition = torch.randn(2, 4, LENGTH, WIDTH)
        noisy = x + torch.randn_like(x)
        for each in levels:
            for block in each["attentions"]:
                noisy = block["transformer_blocks"][0](noisy, condition)
        yield descend(optimizer, functional.mse_loss(noisy, x))


class Tower(nn.Module):
    def __init__(self, layers: int, mask: torch.Tensor | None = None, **attention) -> None:
        super().__init__()
        make = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **attention) for _ in range(layers))
        self.layers, self.head, self.mask = make, nn.Linear(WIDTH, 1), mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False, attn_mask=self.mask)[0]
        return self.head(x.mean(1))


def vision(optimizer=torch.optim.RMSprop, **attention) -> Losses:
    patches, tower = keep(nn.Conv2d(3, WIDTH, 4, 4)), keep(Tower(2, **attention))
    stepper = optimizer([*patches.parameters(), *tower.parameters()])
    while True:
        out = tower(patches(torch.randn(4, 3, 16, 32)).flatten(2).transpose(1, 2))
        yield descend(stepper, functional.binary_cross_entropy_with_logits(out, torch.ones_like(out)))


def gan() -> Losses:
    makes, judges = keep(Tower(1)), keep(Tower(1))
    of_makes, of_judges = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (makes, judges))
    make = nn.Linear(WIDTH, WIDTH)
    while True:
        real, noise = torch.randn(2, 4, LENGTH, WIDTH)
        fake = make(noise) + makes(noise).unsqueeze(1)
        loss = judges(fake.detach()).mean() - judges(real).mean()
        descend(of_judges, loss)
        descend(of_makes, -judges(fake).mean())
        yield loss


def two_in_turn() -> Losses:
    for _ in range(2):
        models.clear()
        yield from itertools.islice(gpt(), STEPS // 2)


def reinforce() -> Losses:
    model, batches = keep(TinyGpt(layers=2)), Batches(length=8)
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
    while True:
        tokens = batches()
        with torch.no_grad():
            for _ in range(8):
                tokens = torch.cat([tokens, model(tokens)[:, -1].softmax(-1).multinomial(1)], 1)
        reward = (tokens[:, -8:].float().mean(1) / VOCABULARY - 0.5).unsqueeze(1)
        chosen = model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
        yield descend(optimizer, -(reward * chosen[:, -8:]).mean())


class Grouped(nn.Module):
    """Eight query heads over two of keys; `value` wide values make it latent attention, which no fused kernel takes."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 16)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, 2 * value), nn.Linear(8 * value, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = [p(x).unflatten(-1, (n, -1)).transpose(1, 2)
                 for p, n in ((self.q_proj, 8), (self.k_proj, 2), (self.v_proj, 2))]  # fmt: skip
        out = functional.scaled_dot_product_attention(*split, is_causal=True, enable_gqa=True)
        return x + self.o_proj(out.transpose(1, 2).flatten(2))


def grouped(value: int = 8) -> Losses:
    model = keep(nn.ModuleDict({"layers": nn.ModuleList(Grouped(value) for _ in range(2))}))
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
    while True:
        x = torch.randn(4, LENGTH, WIDTH)
        for layer in model["layers"]:
            x = layer(x)
        yield descend(optimizer, functional.smooth_l1_loss(x, torch.zeros_like(x)))


def experts() -> Losses:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.experts = (
                nn.Linear(WIDTH, 3 * WIDTH),
                nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + attend(*self.qkv(x).chunk(3, -1), is_causal=True)
            return x + self.experts[0](x) + self.experts[2](x)

    model = keep(nn.Sequential(Block(), Block()))
    optimizer = torch.optim.Adadelta(model.parameters())
    while True:
        yield descend(optimizer, model(torch.randn(4, LENGTH, WIDTH)).square().mean())


def double() -> Losses:
    model = keep(Tower(2).double())
    optimizer = torch.optim.ASGD(model.parameters())
    while True:
        yield descend(optimizer, model(torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)).square().mean())


def recomputed_by_hand() -> Losses:
    model = keep(Tower(2))
    optimizer = torch.optim.Rprop(model.parameters())
    while True:
        x = torch.randn(4, LENGTH, WIDTH)
        for layer in model.layers:
            x = x + checkpoint(lambda x, layer=layer: layer(x, x, x, need_weights=False)[0], x, use_reentrant=False)
        yield descend(optimizer, x.square().mean())


KINDS = {
    "gpt": gpt,
    "gpt clipped, fused optimizer": lambda: gpt(lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True), clip=True),
    "gpt accumulated": lambda: gpt(pieces=2),
    "gpt of two forward passes": gpt_of_two_forward_passes,
    "gpt checkpointed": lambda: gpt(recompute="saved"),
    "gpt checkpointed, reentrant": lambda: gpt(recompute="reentrant"),
    "gpt in fp32, Adafactor": lambda: gpt(torch.optim.Adafactor, precision=torch.float32),
    "gpt with dropout": lambda: gpt(dropout=0.1),
    "two optimizers": gpt_of_two_optimizers,
    "gradient scaler": gpt_scaled,
    "LBFGS": gpt_lbfgs,
    "compiled": gpt_compiled,
    "hand-written update": hand_written,
    "torch.func": functional_update,
    "LoRA": lora,
    "LoRA checkpointed": lambda: lora("saved"),
    "LoRA checkpointed, reentrant": lambda: lora("reentrant"),
    "encoder": encoder,
    "encoder accumulated": lambda: encoder(2),
    "translation": translation,
    "diffusion": diffusion,
    "vision": vision,
    "vision, float mask": lambda: vision(torch.optim.Adam, mask=torch.zeros(LENGTH, LENGTH)),
    "GAN": gan,
    "two models in turn": two_in_turn,
    "reinforce": reinforce,
    "grouped queries": grouped,
    "latent attention": lambda: grouped(value=12),
    "experts": experts,
    "fp64": double,
    "recomputed by hand": recomputed_by_hand,
}  # fmt: skip


def train(kind: str) -> None:
    set_up()
    losses = [loss.item() for loss in itertools.islice(KINDS[kind](), STEPS)]
    tell(losses=losses, fingerprint=fingerprint(losses, *models))


STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 12
if __name__ == "__main__":
    train(sys.argv[1])
