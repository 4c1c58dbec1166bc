"""Find rare failures in a table, with a weighted sampler.

tabular_plain.py is a plain PyTorch script. tabular.py is the same with oddlot, on two workers.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

EPOCHS, BATCH, KINDS = 10, 128, 8


def table(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return measurements of machines [rows, 6], the kind of each machine, and whether it fails (about 6 %)."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((rows, 6))
    numbers[:, 0] = np.exp(numbers[:, 0])  # hours, never negative
    kind = rng.integers(0, KINDS, rows)
    risk = numbers[:, 0] + 1.5 * numbers[:, 1] * numbers[:, 2] + 0.5 * (kind == 3) + rng.normal(0, 0.3, rows)
    fails = risk > 5.0
    return torch.tensor(numbers, dtype=torch.float32), torch.tensor(kind), torch.tensor(fails).float()


class Net(nn.Module):
    """An embedding of the kind, beside the normalized measurements, and three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(KINDS, 4)
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.Sequential(
            *(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1)),
            *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)),
        )

    def forward(self, numbers: Tensor, kind: Tensor) -> Tensor:
        out: Tensor = self.layers(torch.cat([self.norm(numbers), self.kinds(kind)], dim=1))
        return out.squeeze(1)


def training_step(model: nn.Module, batch: list[Tensor]) -> Tensor:
    numbers, kind, fails = batch
    return binary_cross_entropy_with_logits(model(numbers, kind), fails)


def predict(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    numbers, kind, fails = batch
    return model(numbers, kind), fails


def f1(logits: Tensor, fails: Tensor) -> float:
    found = logits > 0
    hits = (found * fails).sum().item()
    return float(2 * hits / max(1.0, found.sum().item() + fails.sum().item()))


torch.manual_seed(0)
train, test = TensorDataset(*table(4000, seed=1)), TensorDataset(*table(2000, seed=2))
fails = train.tensors[2]
weights = torch.where(fails == 1, 0.3 / fails.mean(), 0.7 / (1 - fails.mean()))  # 30 % failures
sampler = WeightedRandomSampler(weights.tolist(), num_samples=len(train))
train_loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
test_loader = DataLoader(test, batch_size=512)

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.3)
best = 0.0
for _ in range(EPOCHS):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        loss = training_step(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        pairs = [predict(model, batch) for batch in test_loader]
    score = f1(torch.cat([logits for logits, _ in pairs]), torch.cat([fails for _, fails in pairs]))
    if score > best:
        best = score
        torch.save(model.state_dict(), "failures.pt")
print(f"best F1 {best:.3f}")
