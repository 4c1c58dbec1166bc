"""Train a small language model of characters.

language_model_plain.py is a plain PyTorch script. language_model.py is the same with oddlot, on two workers.
"""

import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from oddlot import Job, fit, load

PAGES = sorted((Path(__file__).parent.parent / "docs" / "how-to").glob("*.md"))
CONTEXT, WIDTH, EPOCHS, BATCH = 48, 64, 5, 8  # a step uses a batch of each worker

paths = [Path(sys.argv[1])] if len(sys.argv) > 1 else PAGES
text = "".join(path.read_text(encoding="utf-8") for path in paths)[:40_000]
characters = sorted(set(text))
tokens = torch.tensor([characters.index(one) for one in text])
rows = (len(tokens) - 1) // CONTEXT
inputs = tokens[: rows * CONTEXT].view(rows, CONTEXT)
targets = tokens[1 : rows * CONTEXT + 1].view(rows, CONTEXT)
train = TensorDataset(inputs[: rows * 9 // 10], targets[: rows * 9 // 10])
test = TensorDataset(inputs[rows * 9 // 10 :], targets[rows * 9 // 10 :])


class GPT(nn.Module):
    """A decoder-only transformer of two layers. The output layer has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(characters), WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(characters), bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, tokens.device)
        x = self.embedding(tokens) + self.positions
        return self.head(self.layers(x, mask=mask, is_causal=True)).flatten(0, 1)  # type: ignore[no-any-return]


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets.flatten())


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    matrices = [each for each in model.parameters() if each.ndim >= 2]
    vectors = [each for each in model.parameters() if each.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.99))


def rate(step: int) -> float:
    """Return the factor on the learning rate: a warm-up, then half a cosine."""
    warmup, steps = 20, EPOCHS * len(train) // BATCH
    return min((step + 1) / warmup, 0.1 + 0.9 * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2)


train_loader = DataLoader(train, batch_size=BATCH, shuffle=True)
test_loader = DataLoader(test, batch_size=64)
job = Job(GPT, train_loader, token_loss, eval_data=test_loader, optimizer=make_optimizer, max_grad_norm=1.0)
job.lr_scheduler = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
job.lr_scheduler_every = "version"
run = fit(job, "synchronous", until=f"epochs>={EPOCHS}", out="language_model", force=True, keep_best="loss")
torch.save(load(run, "best"), "language_model.pt")
print(f"best perplexity {math.exp(min(row['loss'] for row in run.history)):.2f}")
