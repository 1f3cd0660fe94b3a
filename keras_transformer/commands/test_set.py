"""The test set of `evaluate` and `compare`: its flags, its pairs, its translations."""

import hashlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.errors import InputError
from keras_transformer.host import num_cores
from keras_transformer.results import Translation
from keras_transformer.sentences import batches_by_length, in_row_order
from keras_transformer.tasks import Task

if TYPE_CHECKING:
    from keras_transformer.data import ParallelText
    from keras_transformer.inference import ModelTranslator

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

_SECONDS_BETWEEN_REPORTS = 10.0  # of progress


class TestSetFlags(NamedTuple):
    """The flags that name a test set, and the size of its batches."""

    source: "flags.FlagHolder[str | None]"
    target: "flags.FlagHolder[str | None]"
    file: "flags.FlagHolder[str | None]"
    batch_size: "flags.FlagHolder[int]"

    @classmethod
    def define(cls) -> "TestSetFlags":
        """Defines the flags."""
        return cls(
            command_flags.define_path(
                "source",
                None,
                "File to translate, plain or compressed, instead of the test set of the run.",
            ),
            command_flags.define_path("target", None, "Reference translations of --source."),
            command_flags.define_path(
                "file",
                None,
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
        if (self.source.value is None) != (self.target.value is None):
            raise InputError("--source and --target must be given together; one is missing")
        if None not in (self.source.value, self.file.value):
            raise InputError("--file cannot be combined with --source and --target; remove one")

    def read(self, task: Task) -> "ParallelText | None":
        """Returns the sentences and references that the flags name, if any."""
        from keras_transformer.data import ParallelText, read_parallel

        if self.source.value is not None and self.target.value is not None:
            text, names = read_parallel(self.source.value, self.target.value), self.source.value
        elif self.file.value is not None:
            text, names = ParallelText.from_pairs(task.read_file(self.file.value)), self.file.value
        else:
            return None
        if not text.source:
            raise InputError(f"there is no sentence to evaluate on in {names}; give a larger text")
        return text

    def translate(
        self, translator: "ModelTranslator", sentences: Sequence[str]
    ) -> list[Translation]:
        """Translates sentences of similar length together, the longest first.

        Progress, and which sentences or translations were truncated, go to standard error.
        """
        search = translator.search
        hypotheses = search.num_translations if search.method == "sampling" else search.beam_size
        batch_size = max(1, min(self.batch_size.value, 4 * self.batch_size.value // hypotheses))
        translator.batch_size, translator.marks_cut_outputs = batch_size, True
        lengths = [len(sentence.encode()) for sentence in sentences]
        batches = batches_by_length(lengths, batch_size * num_cores())  # a core takes a batch
        translations: list[list[Translation]] = []
        remarks = common.LineRemarks()
        start = last_report = time.monotonic()
        num_done = length_done = length_before = 0
        for batch in batches:
            with remarks.collected([row + 1 for row in batch]):
                translations.append(translator.translate([sentences[row] for row in batch]))
            num_done += len(batch)
            length_done += sum(lengths[row] for row in batch)
            now = time.monotonic()
            if not length_before:  # the first batch, in which the graph is traced, tells little
                start, length_before = now, length_done
            if now - last_report >= _SECONDS_BETWEEN_REPORTS and num_done < len(sentences):
                last_report = now
                progress = f"Translated {num_done:,} of {len(sentences):,} sentences"
                if length_done > length_before:
                    pace = (now - start) / (length_done - length_before)
                    progress += f"; about {pace * (sum(lengths) - length_done):.0f} s left"
                print(progress, file=sys.stderr)
        remarks.report()
        return in_row_order(batches, translations)


def digest(text: "ParallelText") -> str:
    """Returns the SHA-256 of a test set's sentences and references, a line each."""
    lines = "".join(f"{line}\n" for side in (text.source, text.target) for line in side)
    return hashlib.sha256(lines.encode()).hexdigest()
