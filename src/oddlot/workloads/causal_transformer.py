"""A small decoder-only transformer, as GPT-2: it predicts the next token at each position of a sequence."""

import torch
from torch import Tensor, nn
from torch.nn import functional

STD = 0.02
"""Standard deviation of the initial weights."""


class SelfAttention(nn.Module):
    """Causal self-attention with several heads, from [batch, length, width] to the same shape.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A transformer block: attention and two linear layers, each after a normalization and with a residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, dropout)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.first_norm(x)))
        hidden = functional.gelu(self.wide(self.second_norm(x)))
        out: Tensor = x + self.dropout(self.narrow(hidden))
        return out


class CausalTransformer(nn.Module):
    """A decoder-only transformer, from tokens [batch, length] to logits [batch, length, vocabulary].

    A sequence has at most `context` tokens. With `tied`, the output layer and the embedding have the same weights.
    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int, layers: int, heads: int, dropout: float, tied: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.dropout = nn.Dropout(dropout)
        blocks = [Block(width, heads, dropout) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialize)
        nn.init.normal_(self.positions, std=STD)
        for block in blocks:  # the sum over all residuals then has the same variance for every depth
            for last in (block.attention.out, block.narrow):
                nn.init.normal_(last.weight, std=STD / (2 * layers) ** 0.5)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(self.dropout(x))))
        return logits


def adamw_of_matrices(lr: float, weight_decay: float, model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW with weight decay of matrices only: biases and norms have none."""
    matrices = [each for each in model.parameters() if each.ndim >= 2]
    vectors = [each for each in model.parameters() if each.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.99))


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
