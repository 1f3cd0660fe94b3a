"""What commands share: loading of TensorFlow and models, remarks on lines, checks of outputs."""

import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.config import SearchConfig, split_list
from keras_transformer.errors import InputError, check_backend
from keras_transformer.host import keep_freed_memory, set_up_gpu
from keras_transformer.sentences import REMARKS, SentenceTranslator, SentenceWarning
from keras_transformer.tasks import Task

if TYPE_CHECKING:
    from keras_transformer.inference import LocalTranslator, XlaShapes
    from keras_transformer.loading import NamedModel


def load_tensorflow(*, one_dnn: bool = True) -> bool:
    """Imports TensorFlow without the lines about the machine that it prints at start.

    Its errors are raised as exceptions too, so that nothing is lost with its log. Before that,
    malloc is set to keep memory (see `keep_freed_memory`), and whether it does is returned.

    Args:
        one_dnn: whether it uses oneDNN on CPUs, unless the environment says. oneDNN sets up its
            kernels again for every shape, and the shapes of decoding change from step to step:
            decoding in float32 takes a third longer with it.

    Raises:
        InputError: Keras has another backend.
    """
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        check_backend()  # first, since PyTorch crashes when it is imported after TensorFlow
    keeps_memory = keep_freed_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    set_up_gpu()
    if not one_dnn:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for a GPU, loudly where there is none
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return keeps_memory


def print_warnings() -> None:
    """Has warnings printed as they are, without the place in the code that gives them."""
    warnings.showwarning = lambda message, *_: print(message, file=sys.stderr)


def find_models() -> "list[NamedModel]":
    """Returns the model of --model, or those of the runs and checkpoints that the flags name.

    What the files of another toolkit lack is printed on standard error.

    Raises:
        InputError: there is no such run or model, or no checkpoint that --checkpoint could mean.
    """
    from keras_transformer.loading import open_model, open_run
    from keras_transformer.training.run import RunDirectory

    if flags.FLAGS.model is not None:
        model = open_model(flags.FLAGS.model)
        for note in model.notes:
            print(note, file=sys.stderr)
        return [model]
    runs = [RunDirectory(path) for path in flags.FLAGS.run_dir.split(",")]
    return [open_run(run, name) for run in runs for name in flags.FLAGS.checkpoint.split(",")]


def load_translator(
    models: "Sequence[NamedModel]",
    search: SearchConfig,
    task: Task | None = None,
    precision: str = "float32",
    xla: "XlaShapes | None" = None,
) -> "LocalTranslator":
    """Returns the translator of a model, or of an ensemble; its task is theirs by default.

    Raises:
        InputError: a checkpoint is damaged, or the tasks or vocabularies of several models differ.
    """
    from keras_transformer.inference import LocalTranslator
    from keras_transformer.models import Ensemble

    def identity(model: "NamedModel") -> list[Any]:
        fingerprints = [vocabulary.fingerprint for vocabulary in model.vocabularies]
        task = model.configs.task
        learned = [getattr(task, name) for name in task.fields_with(is_learned=True)]
        return [task.name, *learned, *fingerprints]

    first = models[0]
    if any(identity(other) != identity(first) for other in models[1:]):
        raise InputError(
            f"the runs in {flags.FLAGS.run_dir} have different tasks or vocabularies; an ensemble "
            "needs runs that were trained with the same --task, its options and --vocabulary"
        )
    members = [model.build(precision) for model in models]
    model = members[0] if len(members) == 1 else Ensemble(members)
    return LocalTranslator(model, *first.vocabularies, search, xla, task or first.configs.task)


class LineRemarks:
    """Collects which lines a model did not take as they are, to report them once at the end.

    Attributes:
        numbers: the number of the line of each sentence that the model gets next, from 1.
    """

    numbers: Sequence[int] = ()

    def __init__(self, model: SentenceTranslator) -> None:
        self._lines: dict[str, set[int]] = {}
        model.report = self._collect

    def _collect(self, warning: SentenceWarning) -> None:
        lines = self._lines.setdefault(warning.remark, set())
        lines.update(self.numbers[row] for row in warning.rows)

    def report(self) -> None:
        """Writes a line for each remark to standard error."""
        for remark, lines in self._lines.items():
            first = ", ".join(map(str, sorted(lines)[:3])) + ", ..." * (len(lines) > 3)
            subject = f"{len(lines):,} line{'s' * (len(lines) > 1)} ({first})"
            print(f"{subject}: {REMARKS[remark]}", file=sys.stderr)


def reject_arguments(arguments: list[str]) -> None:
    """Raises `InputError` where a command that takes flags only got something else."""
    if arguments:
        raise InputError(
            f"unexpected argument {arguments[0]!r}; all options are flags, as in --name=value"
        )


def check_output(path: str | None, inputs: Iterable[str | None] = ()) -> None:
    """Raises `InputError`, before long work, where a result could not be written to a path.

    Nor may it replace one of `inputs`, files that the command reads, or lists of them.
    """
    if path is None:
        return
    target = pathlib.Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"{path} cannot be written; give the name of a file in an existing folder")
    read = [file for names in inputs if names for file in split_list(names)]
    if target.exists() and any(target.samefile(file) for file in read if os.path.exists(file)):
        raise InputError(f"{path} is read and would be replaced; give another path to write to")
