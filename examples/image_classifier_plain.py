"""Classify handwritten digits, with augmentation.

image_classifier_plain.py is a plain PyTorch script. image_classifier.py is the same with oddlot, on two workers.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

DATA = Path(__file__).parent.parent / "src" / "oddlot" / "workloads" / "data" / "digits.npz"
EPOCHS, BATCH = 6, 32


class Digits(Dataset[tuple[Tensor, int]]):
    """Images of 8 x 8 pixels. Training images are shifted by up to one pixel, and get noise."""

    def __init__(self, training: bool) -> None:
        with np.load(DATA) as file:
            part = np.arange(len(file["labels"])) % 5 == 0
            part = ~part if training else part
            self.images = torch.tensor(file["images"][part] / 8 - 1, dtype=torch.float32)[:, None]
            self.labels = file["labels"][part].tolist()
        self.training = training

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.training:
            down, right = torch.randint(3, (2,)).tolist()
            image = pad(image, [1] * 4, value=-1.0)[:, down : down + 8, right : right + 8]
            image = image + 0.1 * torch.randn(image.shape)
        return image, self.labels[index]


class Net(nn.Sequential):
    """Two convolutions with batch normalization, and two linear layers."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10)),
        )


def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, int]]) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loader:
            correct += (model(images).argmax(dim=1) == labels).sum().item()
    return correct / len(loader.dataset)  # type: ignore[arg-type]  # it has a length


torch.manual_seed(0)
train_loader = DataLoader(Digits(training=True), batch_size=BATCH, shuffle=True)
test_loader = DataLoader(Digits(training=False), batch_size=256)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
best = 0.0
for _ in range(EPOCHS):
    model.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=2.0)
        optimizer.step()
    scheduler.step()
    accuracy = evaluate(model, test_loader)
    if accuracy > best:
        best = accuracy
        torch.save(model.state_dict(), "digits.pt")
print(f"best accuracy {best:.3f}")
