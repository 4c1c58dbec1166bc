"""Tests of ResNet-20 and of random augmentation."""

import pytest
import torch
from torch import Tensor, nn

from oddlot.workloads.cifar_models import NETWORKS, Augmented, Block, Colours, resnet20

SCALE = ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])


def test_resnet20_has_the_published_parameters_and_shapes() -> None:
    model = resnet20(*SCALE, augment=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == 269_722
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) + 1 == 20  # and one linear layer: shortcuts of option A have no weights
    assert all(each.kernel_size == (3, 3) and each.bias is None for each in convolutions)
    assert len([module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]) == 19
    shapes: list[list[int]] = []
    for block in (module for module in model.modules() if isinstance(module, Block)):
        block.register_forward_hook(lambda _, __, out: shapes.append(list(out.shape[1:])))
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 10)
    assert shapes == [[16, 32, 32]] * 3 + [[32, 16, 16]] * 3 + [[64, 8, 8]] * 3


def test_shortcut_subsamples_and_pads_with_zeros() -> None:
    block = Block(2, 5, stride=2)
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.rand(1, 2, 8, 8)
    out = block(x)
    assert torch.equal(out[:, :2], x[:, :, ::2, ::2])
    assert torch.equal(out[:, 2:], torch.zeros(1, 3, 4, 4))


def test_initial_weights_follow_he() -> None:
    torch.manual_seed(0)
    model = resnet20(*SCALE, augment=False)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            inputs = module.in_channels * 9
            assert module.weight.std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.15)


@pytest.mark.parametrize("name", NETWORKS)
def test_pictures_are_augmented_only_in_training(name: str) -> None:
    pixels = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for augment in (False, True):
        model = NETWORKS[name](*SCALE, augment)
        stages = [module for module in model.modules() if isinstance(module, Augmented)]
        assert len(stages) == augment
        model.eval()
        assert torch.equal(model(pixels), model(pixels))


def test_augmentation_draws_every_shift_and_flip() -> None:
    """All pixels of the image differ, so the pixel in the middle shows the shift."""
    torch.manual_seed(0)
    picture = torch.arange(1.0, 1025.0).view(1, 1, 32, 32).repeat(1, 3, 1, 1)
    padded = nn.functional.pad(picture, [4] * 4)
    out = Augmented()(picture.expand(3000, 3, 32, 32))
    seen = set()
    for image in out.unique(dim=0):
        row, column = divmod(int(image[0, 16, 16]) - 1, 32)
        mirrored = bool(image[0, 16, 16] > image[0, 16, 17])
        down, right = row - 12, (column - 11 if mirrored else column - 12)
        window = padded[0, :, down : down + 32, right : right + 32]
        assert torch.equal(image, window.flip(2) if mirrored else window)
        seen.add((down, right, mirrored))
    assert seen == {(down, right, mirrored) for down in range(9) for right in range(9) for mirrored in (0, 1)}


def test_same_seed_gives_the_same_pictures() -> None:
    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return Augmented()(torch.arange(24.0 * 1024).view(8, 3, 32, 32))  # type: ignore[no-any-return]  # a Module's call

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_each_color_channel_has_its_own_scale() -> None:
    scaled = Colours([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])(torch.full((1, 3, 1, 1), 7, dtype=torch.uint8))
    assert scaled.flatten().tolist() == [6.0, 2.5, 1.0]
