"""Classify handwritten digits, with augmentation.

image_classifier_plain.py is a plain PyTorch script. image_classifier.py is the same with oddlot, on two workers.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

from oddlot import Job, accuracy, fit, load

DATA = Path(__file__).parent.parent / "src" / "oddlot" / "workloads" / "data" / "digits.npz"
EPOCHS, BATCH = 6, 16  # a step uses a batch of each worker


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


train_loader = DataLoader(Digits(training=True), batch_size=BATCH, shuffle=True)
test_loader = DataLoader(Digits(training=False), batch_size=256)
job = Job(Net, train_loader, cross_entropy, eval_data=test_loader, max_grad_norm=2.0)
job.metrics = {"accuracy": accuracy}
job.optimizer = lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
job.lr_scheduler = lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
run = fit(job, "synchronous", until=f"epochs>={EPOCHS}", out="digits", force=True, keep_best="accuracy")
torch.save(load(run, "best"), "digits.pt")
print(f"best accuracy {max(row['accuracy'] for row in run.history):.3f}")
