"""Trainings in which two optimizers take turns, each on a loss of its own: `game_training.py KIND SEED STEPS [FAULT]`.
All are sound; their losses rise, fall and change sign. FAULT `nan`: from two thirds of the steps on, the loss of the
second optimizer is NaN, and its steps are left out, so that the other loss stays finite."""

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

WIDTH, LENGTH, HEADS, BATCH = 32, 8, 2, 16


class Tower(nn.Module):
    """An attention block between two linear layers. Without `norm` a critic, whose last bias would get no gradient."""

    def __init__(self, inputs: int, outputs: int, *, norm: bool = True) -> None:
        super().__init__()
        self.into, self.qkv = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        self.proj, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, outputs, bias=norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.leaky_relu(self.into(x), 0.2)
        q, k, v = (y.view(*y.shape[:2], HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).split(WIDTH, 2))
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.out(functional.leaky_relu(x + self.proj(attended.reshape(x.shape)), 0.2))


def real() -> torch.Tensor:
    """Noisy circles of a random phase."""
    angle = 6.28 * torch.rand(BATCH, 1) + torch.arange(LENGTH) * 0.785
    return torch.stack([angle.cos(), angle.sin()], -1) + 0.05 * torch.randn(BATCH, LENGTH, 2)


class Gan:
    def __init__(self, rate: float = 1e-3, optimizer: Callable = torch.optim.Adam, **options: object) -> None:
        self.generator, self.critic = Tower(4, 2), Tower(2, 1, norm=False)
        self.first = optimizer(self.critic.parameters(), lr=rate, **options)
        self.second = optimizer(self.generator.parameters(), lr=rate, **options)

    def fake(self) -> torch.Tensor:
        return self.generator(torch.randn(BATCH, LENGTH, 4))

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x).mean(1).squeeze(-1)


def apply(optimizer: torch.optim.Optimizer, loss: torch.Tensor, *, is_wrong: bool = False) -> None:
    optimizer.zero_grad()
    (loss * float("nan") if is_wrong else loss).backward()
    if is_wrong:
        optimizer.zero_grad()
    optimizer.step()


def dcgan(steps: int, is_wrong: Callable[[int], bool]) -> None:
    """The loss of the first optimizer has two backward passes in each step."""
    gan = Gan(betas=(0.5, 0.999))
    bce = functional.binary_cross_entropy_with_logits
    for step in range(steps):
        gan.first.zero_grad()
        fake = gan.fake()
        bce(gan.score(real()), torch.ones(BATCH)).backward()
        bce(gan.score(fake.detach()), torch.zeros(BATCH)).backward()
        gan.first.step()
        apply(gan.second, bce(gan.score(fake), torch.ones(BATCH)), is_wrong=is_wrong(step))


def lsgan(steps: int, is_wrong: Callable[[int], bool]) -> None:
    """The generator steps first."""
    gan = Gan()
    for step in range(steps):
        apply(gan.second, (gan.score(gan.fake()) - 1).square().mean(), is_wrong=is_wrong(step))
        fake = gan.fake().detach()
        apply(gan.first, ((gan.score(real()) - 1).square() + gan.score(fake).square()).mean() / 2)


def wgan_clip(steps: int, is_wrong: Callable[[int], bool]) -> None:
    gan = Gan(rate=2e-3, optimizer=torch.optim.RMSprop)
    for step in range(steps):
        apply(gan.first, gan.score(gan.fake().detach()).mean() - gan.score(real()).mean())
        with torch.no_grad():
            for parameter in gan.critic.parameters():
                parameter.clamp_(-0.1, 0.1)
        if step % 5 == 4:
            apply(gan.second, -gan.score(gan.fake()).mean(), is_wrong=is_wrong(step))


def wgan_gp(steps: int, is_wrong: Callable[[int], bool]) -> None:
    gan = Gan(betas=(0.0, 0.9))
    for step in range(steps):
        truth, fake = real(), gan.fake().detach()
        between = (truth + torch.rand(BATCH, 1, 1) * (fake - truth)).requires_grad_()
        # PyTorch's fused attention has no second derivative.
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            (slope,) = torch.autograd.grad(gan.score(between).sum(), between, create_graph=True)
            penalty = 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()
            apply(gan.first, gan.score(fake).mean() - gan.score(truth).mean() + penalty)
        if step % 3 == 2:
            apply(gan.second, -gan.score(gan.fake()).mean(), is_wrong=is_wrong(step))


def hinge(steps: int, is_wrong: Callable[[int], bool]) -> None:
    """Both losses are made before either optimizer steps."""
    gan = Gan(rate=4e-4, betas=(0.0, 0.9))
    for step in range(steps):
        fake = gan.fake()
        apply(gan.first, (1 - gan.score(real())).relu().mean() + (1 + gan.score(fake.detach())).relu().mean())
        apply(gan.second, -gan.score(fake).mean(), is_wrong=is_wrong(step))


def actor_critic(steps: int, is_wrong: Callable[[int], bool]) -> None:
    """As PPO: on each batch of actions, several steps of the actor and then several of the critic."""
    actor, critic = Tower(2, 3), Tower(2, 1)
    first, second = (torch.optim.Adam(each.parameters(), lr=3e-3) for each in (actor, critic))
    for step in range(0, steps, 5):
        seen = real()
        with torch.no_grad():
            before = torch.distributions.Categorical(logits=actor(seen))
            action = before.sample()
            wanted = (seen[..., 0] > 0).long() + (seen[..., 1] > 0).long()
            reward = (action == wanted).float() * (1 + step / steps)
            advantage = reward - critic(seen).squeeze(-1)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        for _ in range(5):
            now = torch.distributions.Categorical(logits=actor(seen))
            ratio = (now.log_prob(action) - before.log_prob(action)).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            apply(first, -gain.mean() - 0.01 * now.entropy().mean())
        for _ in range(5):
            apply(second, (critic(seen).squeeze(-1) - reward).square().mean(), is_wrong=is_wrong(step))


def alternating(steps: int, is_wrong: Callable[[int], bool]) -> None:
    """An encoder and a decoder in turn; the second loss has a penalty whose weight grows."""
    encoder, decoder = Tower(2, 4), Tower(4, 2)
    first, second = torch.optim.AdamW(encoder.parameters(), 2e-3), torch.optim.SGD(decoder.parameters(), 0.01)
    for step in range(steps):
        x = real()
        apply(first, (decoder(encoder(x)) - x).square().mean())
        code = encoder(x).detach()
        penalty = 3 * step / steps * code.square().mean()
        apply(second, (decoder(code) - x).square().mean() + penalty, is_wrong=is_wrong(step))


def main() -> None:
    kind, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    globals()[kind](steps, lambda step: "nan" in sys.argv[4:] and 3 * step > 2 * steps)


if __name__ == "__main__":
    main()
