"""A language model of characters: a small GPT on the user's text file, or on a generated text."""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.machines.text_files import read_packed
from oddlot.workloads.data_folders import found_instead, roots

if TYPE_CHECKING:
    from torch import Tensor

    from oddlot.train.job import Job

logger = logging.getLogger(__name__)

NAME = "char_lm"
FILE = "tinyshakespeare.txt"
SOURCE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SUBFOLDER = "text"
HELD_OUT = 0.1
"""Share of the text, at its end, for evaluation."""
WEIGHT_DECAY, DROPOUT = 0.1, 0.1
EPOCHS = 10
GENERATED = 200_000
"""Number of characters of the generated text."""
WORDS = (
    ("the", "a", "one", "every", "that"),
    ("small", "red", "quick", "old", "silent", "happy"),
    ("fox", "river", "sailor", "garden", "machine", "teacher"),
    ("sees", "follows", "paints", "forgets", "answers", "carries"),
)
"""Words of the generated text, in the order of a sentence. Its object has words of the first three kinds, too."""


def char_lm(
    data_dir: str = "",
    text: str = "",
    tokens: int = 100_000,
    context: int = 64,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    tied: bool = True,
    lr: float = 3e-3,
    batch_size: int = 16,
) -> "Job":
    """Language model of characters: a small GPT that predicts the next character of a text.

    The text is a file of yours. Without one, it is a generated text of simple sentences. The last tenth of the text is
    for evaluation.

    Args:
        data_dir: Folder with `tinyshakespeare.txt` or `tinyshakespeare.txt.gz`. Empty: $ODDLOT_DATA.
        text: Another text file, plain or gzipped, in UTF-8.
        tokens: Number of characters to use, from the start of the text. 0: all.
        context: Characters of a sample, and largest number of characters that a prediction depends on.
        width: Width of the hidden layers. A multiple of `heads`.
        layers: Number of transformer blocks.
        heads: Attention heads of each block.
        tied: Whether the embedding and the output layer have the same weights.
        lr: Learning rate of AdamW, after the warm-up.
        batch_size: Samples per minibatch.
    """
    from oddlot.train.job import Job
    from oddlot.train.lr_schedules import Cosine
    from oddlot.workloads.causal_transformer import CausalTransformer, adamw_of_matrices

    _check_sizes({"context": context, "width": width, "layers": layers, "heads": heads})
    if width % heads:
        raise InvalidValue("width", width, f"a multiple of heads, which is {heads}")
    if tokens < 0:
        raise InvalidValue("tokens", tokens, "at least 0")
    characters = read(data_dir, text)[: tokens or None]
    vocabulary, encoded = np.unique(list(characters), return_inverse=True)
    train, test = _split(encoded.astype(np.int64), context)
    return Job(
        model=partial(CausalTransformer, len(vocabulary), context, width, layers, heads, DROPOUT, tied),
        train_data=train,
        eval_data=test,
        loss=_loss,
        metrics={"perplexity": Perplexity()},
        optimizer=partial(adamw_of_matrices, lr, WEIGHT_DECAY),
        lr_schedule=Cosine(epochs=EPOCHS, warmup_epochs=0.5, floor=0.1),
        max_grad_norm=1.0,
        batch_size=batch_size,
        until=f"epochs>={EPOCHS}",
        name=NAME,
    )


class Perplexity:
    """Perplexity of logits [n, length, vocabulary] for targets [n, length]: the exponential of the mean loss."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start an evaluation."""
        self.loss, self.tokens = 0.0, 0

    def update(self, logits: "Tensor", targets: "Tensor") -> None:
        """Add a batch."""
        self.loss += float(_loss(logits, targets)) * targets.numel()
        self.tokens += targets.numel()

    def compute(self) -> float:
        """Return the perplexity of all batches."""
        return float(np.exp(self.loss / self.tokens))


def _loss(logits: "Tensor", targets: "Tensor") -> "Tensor":
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def read(data_dir: str = "", text: str = "") -> str:
    """Return the text file `text`, or else `tinyshakespeare.txt` in `data_dir` or $ODDLOT_DATA, or a generated text.

    Raise UsageError if the file is not readable, or if `data_dir` does not have it.
    """
    if text:
        return read_packed(Path(text).expanduser(), str)
    folders = [folder for root in roots(data_dir) for folder in (root / SUBFOLDER, root)]
    found = [path for folder in folders for end in ("", ".gz") if (path := folder / f"{FILE}{end}").is_file()]
    if found:
        return read_packed(found[0], str)
    if data_dir:
        instead, fields = found_instead(folders[1:], [FILE])
        raise UsageError(
            f"there is no {FILE}[.gz] in {data_dir}. {instead}Download it from {SOURCE}, or use a text of yours: "
            "--set workload.text=FILE",
            "missing_data",
            "data_dir",
            dataset=NAME,
            files=[FILE],
            looked_in=list(map(str, folders)),
            **fields,
        )
    logger.info(
        "%s: no %s in $ODDLOT_DATA: a generated text is used. For a text of yours: --set workload.text=FILE",
        NAME,
        FILE,
    )
    return generated(GENERATED)


def generated(characters: int) -> str:
    """Return a text of at least this many characters: sentences of random words, the same in every process."""
    rng = np.random.Generator(np.random.PCG64(0))
    kinds, sentences, length = (*WORDS, *WORDS[:3]), list[str](), 0
    while length < characters:
        words = [kind[rng.integers(len(kind))] for kind in kinds]
        sentences.append(f"{' '.join(words).capitalize()}.\n")
        length += len(sentences[-1])
    return "".join(sentences)


def _split(encoded: NDArray[np.int64], context: int) -> tuple[tuple[NDArray[Any], ...], ...]:
    """Return the training and evaluation data: rows of characters, and of the characters that follow each of them."""
    count = (len(encoded) - 1) // context
    held_out = int(count * HELD_OUT)
    if held_out < 1:
        message = (
            f"the text has {len(encoded):,} characters: {int(context / HELD_OUT) + 1:,} or more are needed"
        )
        raise UsageError(message, "too_few_samples", "tokens", characters=len(encoded), context=context)
    inputs = encoded[: count * context].reshape(count, context)
    targets = encoded[1 : count * context + 1].reshape(count, context)
    return (inputs[:-held_out], targets[:-held_out]), (inputs[-held_out:], targets[-held_out:])


def _check_sizes(sizes: dict[str, int]) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise InvalidValue(name, value, "at least 1")
