"""A small transformer for dual runs: two blocks, one head of logits, weights and inputs from a fixed seed."""

# mypy: ignore-errors
# It runs inside images, with the PyTorch that they have.

import math

import torch
from torch import nn

WIDTH, HEADS, LENGTH, VOCABULARY = 128, 4, 64, 50


class Attention(nn.Module):
    """Self-attention, written out so that each product is a module of its own."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            one(x).reshape(batch, length, HEADS, -1).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """Attention and two linear layers, with norms before them."""

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.act, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Embedding, two blocks, and logits of the next token."""

    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        place = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.position(place)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def inputs(seed):
    """Return a batch of four sequences of tokens."""
    return torch.randint(0, VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(seed))


def model():
    """Return the model. Its weights depend on no release: they come from integers and a division."""
    made = Transformer()
    state = 12345
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            numbers = []
            for _ in range(parameter.numel()):
                state = (1103515245 * state + 12345) % 2**31
                numbers.append(state / 2**31 - 0.5)
            scale = 2.0 / math.sqrt(parameter.shape[-1])
            parameter.copy_(
                torch.tensor(numbers, dtype=torch.float64).reshape(parameter.shape) * scale
            )
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
    return made


SHARES = {}  # model -> shares of the next token: computed once for many draws


def sample(model, seed):
    """Return a token that is drawn from the logits of a fixed sequence."""
    if model not in SHARES:
        device = next(model.parameters()).device
        SHARES[model] = torch.softmax(model(inputs(0)[:1].to(device))[0, -1].float().cpu(), 0)
    return torch.multinomial(SHARES[model], 1, generator=torch.Generator().manual_seed(seed))
