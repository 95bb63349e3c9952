"""Sound trainings of kinds_training.py with copies, buffers, unlike losses, and games of two optimizers."""

import copy

import torch
from kind_parts import LENGTH, STEPS, WIDTH, adamw, classes, gpt, kind, loop, perceptron
from tiny_gpt import VOCABULARY, Batches, TinyGpt, loss_of
from torch import nn
from torch.nn import functional
from torch.optim import swa_utils

# Copies, buffers, targets.


@kind
def average_of_the_weights() -> None:
    model, loss = gpt()
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.99))
    loop(model, adamw(model), loss, after=lambda step: average.update_parameters(model))


@kind
def trained_with_swapped_averages() -> None:
    """Evaluation with the averaged weights, which are swapped in and out."""
    model, loss = gpt()
    average = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def after(step: int) -> None:
        for a, p in zip(average, model.parameters(), strict=True):
            a.lerp_(p, 0.05)
        if step % 20 == 19:
            kept = [p.detach().clone() for p in model.parameters()]
            for a, p in zip(average, model.parameters(), strict=True):
                p.copy_(a)
            loss()
            for k, p in zip(kept, model.parameters(), strict=True):
                p.copy_(k)

    loop(model, adamw(model), loss, after=after)


@kind
def teacher_as_average() -> None:
    """A student and its averaged teacher (BYOL): only the student's predictor has a gradient."""
    student, ahead = perceptron(WIDTH), nn.Linear(WIDTH, WIDTH)
    teacher = copy.deepcopy(student).requires_grad_(False)
    model = nn.ModuleList([student, ahead])

    def loss() -> torch.Tensor:
        x = classes()[0]
        with torch.no_grad():
            wanted = teacher(x + 0.1 * torch.randn_like(x))
        return 2 - 2 * functional.cosine_similarity(ahead(student(x + 0.1 * torch.randn_like(x))), wanted).mean()

    @torch.no_grad()
    def after(step: int) -> None:
        for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
            t.lerp_(s, 0.01)

    loop(model, adamw(model), loss, after=after)


@kind
def q_learning() -> None:
    """The target net is a copy that is renewed every 50 steps, so the loss jumps."""
    model = perceptron()
    target = copy.deepcopy(model).requires_grad_(False)

    def loss() -> torch.Tensor:
        x, reward = classes()
        wanted = (reward == 1).float() + 0.9 * target(x.roll(1, 0)).max(1).values
        chosen = torch.randint(4, (32, 1))
        return functional.smooth_l1_loss(model(x).gather(1, chosen)[:, 0], wanted)

    def after(step: int) -> None:
        if step % 50 == 49:
            target.load_state_dict(model.state_dict())

    loop(model, torch.optim.RMSprop(model.parameters(), lr=1e-3), loss, after=after)


@kind
def distilled() -> None:
    model, _ = gpt(layers=1)
    teacher, batches = TinyGpt(layers=2).requires_grad_(False), Batches(batch=4, length=LENGTH)

    def loss() -> torch.Tensor:
        tokens = batches()[:, :-1]
        with torch.no_grad():
            wanted = (5 * teacher(tokens)).log_softmax(-1)
        return functional.kl_div(model(tokens).log_softmax(-1), wanted, reduction="batchmean", log_target=True)

    loop(model, adamw(model), loss)


@kind
def batch_norm() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip

    def loss() -> torch.Tensor:
        x, label = torch.randn(8, 3, 12, 12), torch.randint(4, (8,))
        return functional.cross_entropy(model(x + label[:, None, None, None]), label)

    loop(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4), loss)


@kind
def codebook() -> None:
    """A VQ-VAE: straight-through gradients, and a codebook that is a parameter without a gradient."""
    encoder, decoder = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)
    model = nn.ModuleList([encoder, decoder])
    model.codes = nn.Parameter(torch.randn(16, WIDTH), requires_grad=False)

    def loss() -> torch.Tensor:
        x = classes()[0]
        z = encoder(x)
        nearest = torch.cdist(z, model.codes).argmin(1)
        code = model.codes[nearest]
        with torch.no_grad():
            for n in nearest.unique():
                model.codes[n].lerp_(z[nearest == n].mean(0), 0.05)
        return functional.mse_loss(decoder(z + (code - z).detach()), x) + 0.25 * functional.mse_loss(z, code.detach())

    loop(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss)


@kind
def variational() -> None:
    """The weight of the divergence rises from 0, so the loss rises too."""
    encoder, decoder, turn = nn.Linear(8, 8), nn.Linear(4, 8), iter(range(10**9))
    model = nn.ModuleList([encoder, decoder])

    def loss() -> torch.Tensor:
        x, step = classes()[0], next(turn)
        mean, log_variance = encoder(x).chunk(2, 1)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return functional.mse_loss(decoder(z), x) + 0.05 * min(1.0, 2 * step / STEPS) * divergence

    loop(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss)


# Losses of other kinds.


@kind
def policy_gradient() -> None:
    model = perceptron()

    def loss() -> torch.Tensor:
        x, wanted = classes()
        chance = torch.distributions.Categorical(logits=model(x))
        action = chance.sample()
        reward = (action == wanted).float()
        return -((reward - reward.mean()) * chance.log_prob(action)).mean() - 0.01 * chance.entropy().mean()

    loop(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss)


@kind
def contrastive() -> None:
    towers, scale = nn.ModuleList([perceptron(WIDTH), perceptron(WIDTH)]), nn.Parameter(torch.tensor(2.6))
    towers.scale = scale

    def loss() -> torch.Tensor:
        x = classes()[0]
        a, b = (functional.normalize(t(x + 0.1 * torch.randn_like(x)), dim=1) for t in towers)
        scores, own = scale.exp() * a @ b.T, torch.arange(32)
        return (functional.cross_entropy(scores, own) + functional.cross_entropy(scores.T, own)) / 2

    loop(towers, adamw(towers), loss)


@kind
def triplets() -> None:
    """A hinge: many triplets of a trained model have a loss of exactly 0, and so has a batch now and then."""
    model = perceptron(8)

    def loss() -> torch.Tensor:
        x = torch.randn(2, 8)
        a, b, c = model(x), model(x + 0.3 * torch.randn_like(x)), model(torch.randn(2, 8))
        return functional.triplet_margin_loss(a, b, c, margin=0.2)

    loop(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss)


@kind
def diffusion() -> None:
    model = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))

    def loss() -> torch.Tensor:
        x, noise, t = torch.randn(32, 8).sign(), torch.randn(32, 8), torch.rand(32, 1)
        return functional.mse_loss(model(torch.cat([(1 - t).sqrt() * x + t.sqrt() * noise, t], 1)), noise)

    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.999))
    loop(model, adamw(model), loss, after=lambda step: average.update_parameters(model))


@kind
def regression_with_outliers() -> None:
    """Targets with a heavy tail (Student's t with 3 degrees of freedom)."""
    model, tail = perceptron(1), torch.distributions.StudentT(3.0)

    def loss() -> torch.Tensor:
        x = torch.randn(32, 8)
        return functional.mse_loss(model(x)[:, 0], x.sum(1) + tail.sample((32,)))

    loop(model, torch.optim.SGD(model.parameters(), lr=0.01), loss)


@kind
def slopes_of_the_output() -> None:
    """A physics-informed loss: second derivatives of the model with respect to its input."""
    model = nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def loss() -> torch.Tensor:
        x = torch.rand(32, 1, requires_grad=True)
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return (second + model(x)).square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()

    loop(model, torch.optim.Adam(model.parameters(), lr=2e-3), loss)


@kind
def meta_learning() -> None:
    """Inner gradients are taken through (MAML)."""
    model = perceptron(1)

    def loss() -> torch.Tensor:
        slope, x = torch.randn(8), torch.randn(16, 8)
        weights = dict(model.named_parameters())
        inner = functional.mse_loss(torch.func.functional_call(model, weights, (x,))[:, 0], x @ slope)
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        moved = {n: w - 0.05 * g for (n, w), g in zip(weights.items(), slopes, strict=True)}
        y = torch.randn(16, 8)
        return functional.mse_loss(torch.func.functional_call(model, moved, (y,))[:, 0], y @ slope)

    loop(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss)


@kind
def recurrent() -> None:
    """Truncated backpropagation: the state is carried from step to step."""
    cell, head, state = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, VOCABULARY), [None]
    model, batches = nn.ModuleList([nn.Embedding(VOCABULARY, WIDTH), cell, head]), Batches(batch=4, length=LENGTH)

    def loss() -> torch.Tensor:
        tokens = batches()
        out, kept = cell(model[0](tokens[:, :-1]), state[0])
        state[0] = tuple(each.detach() for each in kept)
        return functional.cross_entropy(head(out).flatten(0, 1), tokens[:, 1:].flatten())

    loop(model, adamw(model), loss, clip=0.25)


@kind
def longer_and_longer() -> None:
    """The length grows fourfold in three steps, and so does the number of tokens."""
    model, turn = TinyGpt(layers=2), iter(range(10**9))
    batches = [Batches(batch=4, length=n) for n in (8, 16, 32)]
    loop(model, adamw(model), lambda: loss_of(model, batches[min(2, 3 * next(turn) // STEPS)]()))


@kind
def labels_left_out() -> None:
    """Two of three labels do not count, in another part of each batch."""
    model, batches = TinyGpt(layers=2), Batches(batch=4, length=LENGTH)

    def loss() -> torch.Tensor:
        tokens = batches()
        labels = tokens[:, 1:].masked_fill(torch.rand(4, LENGTH) < 0.66, -100)
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())

    loop(model, adamw(model), loss)


# Games.


def game(critic_steps: int, wasserstein: bool, block: int = 1) -> None:
    """`block`: steps of the generator in a row."""
    maker, critic = perceptron(8), perceptron(1)
    first = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    second = torch.optim.RMSprop(maker.parameters(), lr=1e-3)
    score = (lambda y: y.mean()) if wasserstein else (lambda y: functional.softplus(y).mean())

    def take(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(STEPS // (critic_steps + block)):
        for _ in range(critic_steps):
            fake, real = maker(torch.randn(32, 8)).detach(), torch.randn(32, 8) + 1
            take(first, score(critic(fake)) + (-critic(real).mean() if wasserstein else score(-critic(real))))
            if wasserstein:
                for p in critic.parameters():
                    p.data.clamp_(-0.1, 0.1)
        for _ in range(block):
            take(second, -critic(maker(torch.randn(32, 8))).mean())


@kind
def game_in_turns() -> None:
    game(1, wasserstein=False)


@kind
def game_with_five_critic_steps() -> None:
    game(5, wasserstein=True)


@kind
def game_in_blocks() -> None:
    game(20, wasserstein=True, block=20)


@kind
def blocks_of_two_optimizers() -> None:
    """Alternating minimisation: 25 steps of one part, then 25 of the other, on the same loss."""
    model, loss = gpt()
    parts = [adamw(model.blocks), torch.optim.AdamW([*model.embedding.parameters(), *model.head.parameters()], 2e-3)]
    for block in range(STEPS // 25):
        loop(model, parts[block % 2], loss, steps=25, before=lambda step: model.zero_grad())
