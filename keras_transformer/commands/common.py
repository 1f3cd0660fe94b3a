"""What the commands share: loading TensorFlow and models, and checks of arguments and outputs."""

import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.host import keep_freed_memory

if TYPE_CHECKING:
    from keras_transformer.data import Shortlist
    from keras_transformer.training import RunDirectory


def load_tensorflow(*, one_dnn: bool = True) -> bool:
    """Imports TensorFlow without the lines about the machine that it prints at start.

    Its errors are raised as exceptions too, so that nothing is lost with its log. Before that,
    malloc is set to keep memory (see `keep_freed_memory`), and whether it does is returned.

    Args:
        one_dnn: whether it uses oneDNN on CPUs, unless the environment says. oneDNN sets up its
            kernels again for every shape, and the shapes of decoding change from step to step:
            decoding in float32 takes a third longer with it.
    """
    keeps_memory = keep_freed_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not one_dnn:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for a GPU, loudly where there is none
        except Exception:
            sink.seek(0)
            os.write(saved, sink.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return keeps_memory


def find_checkpoints(run_dirs: str, checkpoints: str) -> "list[tuple[RunDirectory, str]]":
    """Returns runs and the full names of their checkpoints: one model each.

    Args:
        run_dirs: directories of runs, separated by commas.
        checkpoints: as --checkpoint takes them, of each run, separated by commas.

    Raises:
        InputError: there is no such run, or it has no checkpoint that `checkpoints` could mean. A
            step or average that is missing is reported when it is loaded.
    """
    from keras_transformer.training import RunDirectory

    found = []
    for path in run_dirs.split(","):
        run = RunDirectory(path)
        run.configs()  # raises where there is no run
        found += [(run, run.checkpoints().find(name)) for name in checkpoints.split(",")]
    return found


def load_translator(found: "Sequence[tuple[RunDirectory, str]]") -> "tuple[Any, Any, Any]":
    """Returns a model and its vocabularies: an ensemble of several checkpoints.

    Args:
        found: by `find_checkpoints`.

    Raises:
        InputError: a checkpoint is damaged, or the runs' vocabularies differ.
    """
    from keras_transformer.models import Ensemble

    runs = [run for run, _ in found]
    source, target = runs[0].vocabularies()
    for run in runs[1:]:
        if [each.fingerprint for each in run.vocabularies()] != [
            source.fingerprint,
            target.fingerprint,
        ]:
            raise InputError(
                f"the vocabularies of {run.path} and {runs[0].path} differ; an ensemble needs runs "
                "that were trained with the same --vocabulary"
            )
    models = [run.load_model(name) for run, name in found]
    return (models[0] if len(models) == 1 else Ensemble(models)), source, target


def load_shortlist(
    found: "Sequence[tuple[RunDirectory, str]]", search: SearchConfig
) -> "Shortlist | None":
    """Returns the shortlist of the first run, learned now if need be; None where none is wanted."""
    if not search.shortlist:
        return None
    from keras_transformer.training.run import load_shortlist

    def report(pairs: int) -> None:
        print(f"Tokenizing for the shortlist: {pairs:,} pairs ...", file=sys.stderr, flush=True)

    return load_shortlist(found[0][0], report)


def report_truncated(
    lines: Iterable[str], limit: int, num_tokens: Callable[[str], int], *, is_exact: bool = True
) -> Iterator[str]:
    """Yields lines, and then reports on standard error how many were longer than a model reads.

    Args:
        lines: sentences.
        limit: tokens of a sentence that the model reads.
        num_tokens: returns the tokens of a line, or the fewest that it can have.
        is_exact: which of the two.
    """
    total = longer = 0
    for line in lines:
        total += 1
        longer += num_tokens(line) > limit
        yield line
    if longer:
        print(
            f"{'' if is_exact else 'At least '}{longer:,} of {total:,} lines have more than "
            f"{limit} tokens (--max_source_length); the rest of them was not read.",
            file=sys.stderr,
        )


def load_matplotlib() -> None:
    """Imports matplotlib for drawing into files; raises `InputError` where it is not installed."""
    with needs_extra("plot"):
        import matplotlib
    matplotlib.use("Agg")  # needs no screen


def refuse_arguments(arguments: list[str]) -> None:
    """Raises `InputError` where a command that takes flags only got something else."""
    if arguments:
        raise InputError(
            f"unexpected argument {arguments[0]!r}; all options are flags, as in --name=value"
        )


def check_output(path: pathlib.Path) -> None:
    """Raises `InputError`, before long work, where its result could not be written to a file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path} may not be written to; give another path")
