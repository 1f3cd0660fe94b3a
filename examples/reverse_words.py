"""A task with its own metric and constraint: write the words of a sentence in reverse order.

The module registers the task, so each command knows it by `--user_module`:

    python examples/reverse_words.py lines.tsv     # writes 2,000 lines of source TAB target
    python scripts/train.py --run_dir=runs/reverse --user_module=examples/reverse_words.py \
        --task=reverse_words --preset=rnn-tiny --train_file=lines.tsv --dev_file=lines.tsv \
        --learning_rate=0.003 --warmup_steps=100 --train_steps=300 --checkpoint_steps=100
    echo "one two three" | python scripts/translate.py --run_dir=runs/reverse \
        --user_module=examples/reverse_words.py
"""

import dataclasses
import pathlib
import random
import sys
from collections.abc import Sequence
from typing import Any

from keras_transformer import Metric, Task, register_task
from keras_transformer.config import option

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@register_task
@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverseWords(Task):
    """The words of a sentence in reverse order, scored by the share of words in their place."""

    ignore_case: bool = option(False, "Count words that differ in case only as equal.")

    name = "reverse_words"
    metric = Metric("word_accuracy", "words in place")
    default_search = {"beam_size": 2}  # noqa: RUF012

    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        right = total = 0
        for output, reference in zip(outputs, references, strict=True):
            if self.ignore_case:
                output, reference = output.lower(), reference.lower()
            found, wanted = output.split(), reference.split()
            right += sum(a == b for a, b in zip(found, wanted, strict=False))
            total += max(len(found), len(wanted))
        return {"word_accuracy": right / total if total else None}


def main(path: str) -> None:
    draw = random.Random(1)
    rows = [draw.choices(WORDS, k=draw.randint(1, 5)) for _ in range(2000)]
    lines = [" ".join(row) + "\t" + " ".join(reversed(row)) + "\n" for row in rows]
    pathlib.Path(path).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
