"""The test set of `evaluate` and `compare`: its flags, its pairs, its translations."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.errors import InputError
from keras_transformer.host import num_cores
from keras_transformer.outputs import Translation
from keras_transformer.sentences import batches_by_length, in_row_order
from keras_transformer.tasks import Task

if TYPE_CHECKING:
    from keras_transformer.data import ParallelText
    from keras_transformer.inference import Translator

flags.disclaim_key_flags()  # these are flags of the command that defines them through here


class EvaluationSet(NamedTuple):
    """The flags that name a test set, and the size of its batches."""

    source: "flags.FlagHolder[str | None]"
    target: "flags.FlagHolder[str | None]"
    file: "flags.FlagHolder[str | None]"
    batch_size: "flags.FlagHolder[int]"

    @classmethod
    def define(cls) -> "EvaluationSet":
        """Defines the flags."""
        return cls(
            command_flags.define_path(
                "source",
                "File to translate, plain or compressed, instead of the test set of the run.",
            ),
            command_flags.define_path("target", "Reference translations of --source."),
            command_flags.define_path(
                "file",
                "One file with both sides, as --test_file of train, instead of --source and "
                "--target.",
            ),
            flags.DEFINE_integer(
                "batch_size",
                64,
                "Sentences translated at once; fewer with more than 4 hypotheses a sentence, so "
                "that memory is about the same.",
                lower_bound=1,
            ),
        )

    def check(self) -> None:
        """Raises `InputError` unless the flags name one test set, or none."""
        source, target = self.source.value, self.target.value
        if (source is None) != (target is None) or None not in (source, self.file.value):
            raise InputError("give --source and --target, or --file alone")

    def read(self, task: Task) -> "ParallelText | None":
        """Returns the sentences and references that the flags name, if any."""
        from keras_transformer.data import FilePair, ParallelText

        if self.source.value is not None and self.target.value is not None:
            text = ParallelText.from_pairs(FilePair(self.source.value, self.target.value))
        elif self.file.value is not None:
            text = ParallelText.from_pairs(task.read_file(self.file.value))
        else:
            return None
        if not text.source:
            raise InputError(f"there is no sentence in {self.source.value or self.file.value}")
        return text

    def translate(self, translator: "Translator", sentences: Sequence[str]) -> list[Translation]:
        """Translates sentences of similar length together, the longest first.

        Progress, and which sentences or translations were truncated, go to standard error.
        """
        from tqdm import tqdm

        search = translator.search
        hypotheses = search.num_translations if search.method == "sampling" else search.beam_size
        batch_size = max(1, min(self.batch_size.value, 4 * self.batch_size.value // hypotheses))
        translator.batch_size, translator.functions.marks_cut_outputs = batch_size, True
        lengths = [len(sentence.encode()) for sentence in sentences]
        batches = batches_by_length(lengths, batch_size * num_cores())  # a core takes a batch
        translations: list[list[Translation]] = []
        remarks = common.LineRemarks()
        with tqdm(total=len(sentences), unit=" sentences", disable=None, leave=False) as progress:
            for batch in batches:
                with remarks.collected([row + 1 for row in batch]):
                    translations.append(translator.translate([sentences[row] for row in batch]))
                progress.update(len(batch))
        remarks.report()
        return in_row_order(batches, translations)


def digest(text: "ParallelText") -> str:
    """Returns the SHA-256 of a test set's sentences and references, a line each."""
    lines = "".join(f"{line}\n" for side in (text.source, text.target) for line in side)
    return hashlib.sha256(lines.encode()).hexdigest()
