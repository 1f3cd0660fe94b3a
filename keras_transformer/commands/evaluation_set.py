"""The test set of `evaluate` and `compare`: its flags, its pairs, its translations."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.tasks import Task

if TYPE_CHECKING:
    from keras_transformer.data.corpus import ParallelText
    from keras_transformer.loading import NamedModel
    from keras_transformer.training.settings import RunConfigs

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

_BATCHES_AT_ONCE = 16  # sorted by length together, before progress is shown


def define_flags() -> None:
    """Defines the flags that name a test set, and the size of its batches."""
    command_flags.define_path(
        "source", "File to translate, plain or compressed, instead of the test set of the run."
    )
    command_flags.define_path("target", "Reference translations of --source.")
    command_flags.define_path(
        "file",
        "One file with both sides, as --test_file of train, instead of --source and --target.",
    )
    flags.DEFINE_integer(
        "batch_size",
        64,
        "Sentences translated at once; fewer with more than 4 hypotheses a sentence, so that "
        "memory is about the same.",
        lower_bound=1,
    )


def check_flags() -> None:
    """Raises `InputError` unless the flags name one test set, or none."""
    source, target, file = flags.FLAGS.source, flags.FLAGS.target, flags.FLAGS.file
    if (source is None) != (target is None) or None not in (source, file):
        raise InputError("give --source and --target, or --file alone")


def read_test_set(task: Task, run: "RunConfigs | None") -> "ParallelText":
    """Returns the sentences and references that the flags name, or else those of a run.

    Raises:
        InputError: a file cannot be read or has no sentence, or none is named.
    """
    from keras_transformer.data.corpus import FilePair, ParallelText
    from keras_transformer.training.prepare import read_test_text

    source, target, file = flags.FLAGS.source, flags.FLAGS.target, flags.FLAGS.file
    if source is not None:
        text = ParallelText.from_pairs(FilePair(source, target))
    elif file is not None:
        text = ParallelText.from_pairs(task.read_file(file))
    elif run is not None:
        return read_test_text(run.required_data, task=task)
    else:
        raise InputError("--answers needs references: give --source and --target, or --file")
    if not text.source:
        raise InputError(f"there is no sentence in {source or file}")
    return text


def translate(
    models: "Sequence[NamedModel]",
    task: Task,
    search: SearchConfig,
    text: "ParallelText",
) -> tuple[list[str], int]:
    """Returns the output for each sentence, and the number of the model's parameters.

    Progress, and which sentences or translations were truncated, go to standard error. Several
    models are an ensemble.
    """
    from tqdm import tqdm

    translator = common.load_translator(models, search, task)
    task.check_references(text.target, translator.target)
    hypotheses = search.num_translations if search.method == "sampling" else search.beam_size
    batch_size = max(1, min(flags.FLAGS.batch_size, 4 * flags.FLAGS.batch_size // hypotheses))
    translator.batch_size, translator.functions.marks_cut_outputs = batch_size, True
    outputs: list[str] = []
    remarks = common.LineRemarks(translator)
    with tqdm(total=len(text.source), unit=" sentences", disable=None, leave=False) as progress:
        while group := text.source[len(outputs) : len(outputs) + _BATCHES_AT_ONCE * batch_size]:
            remarks.numbers = range(len(outputs) + 1, len(outputs) + len(group) + 1)
            outputs += [best.text for best in translator.translate(group)]
            progress.update(len(group))
    remarks.report()
    model: Any = translator.model
    return task.postprocess(outputs, text.source), model.count_params()


def digest(text: "ParallelText") -> str:
    """Returns the SHA-256 of a test set's sentences and references, a line each."""
    lines = "".join(f"{line}\n" for side in (text.source, text.target) for line in side)
    return hashlib.sha256(lines.encode()).hexdigest()
