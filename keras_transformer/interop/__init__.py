"""Models of other toolkits: finds the model and its format, reads it, writes a run directory of it.

A toolkit's reader is one file, and describes the model as a `ForeignModel` (`foreign.py`).
`ctranslate2.py` and `transformers.py` also write their format.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_transformer.config import SearchConfig, TrainingConfig
from keras_transformer.errors import InputError, check_choice, writing
from keras_transformer.files import atomic_folder, local_path
from keras_transformer.interop.ctranslate2 import is_ctranslate2, read_ctranslate2
from keras_transformer.interop.fairseq import is_fairseq, read_fairseq
from keras_transformer.interop.foreign import ForeignModel, ImportOptions
from keras_transformer.interop.hub import download, is_hub_name
from keras_transformer.interop.marian import is_marian, read_marian
from keras_transformer.interop.opennmt_tf import is_opennmt_tf, read_opennmt_tf
from keras_transformer.interop.transformers import is_transformers, read_transformers
from keras_transformer.text.learning import kind_of
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs

_TOKENIZED = (
    "The text must be tokenized as for the model's training, with spaces between tokens; where "
    "they are pieces such as un@@, translate with --remove_bpe."
)


class Format(NamedTuple):
    """A format: whether a path holds a model in it, and its reader."""

    is_there: Callable[[pathlib.Path], bool]
    read: Callable[[pathlib.Path, ImportOptions], ForeignModel]


FORMATS = {
    "transformers": Format(is_transformers, read_transformers),
    "marian": Format(is_marian, read_marian),
    "fairseq": Format(is_fairseq, read_fairseq),
    "opennmt_tf": Format(is_opennmt_tf, read_opennmt_tf),
    "ctranslate2": Format(is_ctranslate2, read_ctranslate2),
}


def find_format(path: pathlib.Path) -> str:
    """Returns the format of a folder or file.

    Raises:
        InputError: it has none, or several.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; give the folder of a model, or its file")
    if path.suffix == ".keras":
        raise InputError(
            f"{path} is a Keras model, without vocabularies; load it by keras.models.load_model, "
            "and give it to Translator(model, vocabulary)"
        )
    names = [name for name, format in FORMATS.items() if format.is_there(path)]
    if not names:
        raise InputError(
            f"{path} has files of none of the known formats: {', '.join(FORMATS)}; give the folder "
            "of such a model"
        )
    if len(names) > 1:
        raise InputError(
            f"{path} has files of several formats: {', '.join(names)}; remove the others', or "
            "choose with --format of keras-transformer import_model"
        )
    return names[0]


def locate(model: str, revision: str | None = None) -> pathlib.Path:
    """Returns the path of a model: as given, or in the cache after a download from the Hub.

    Args:
        model: a folder or file; or the name of a model on the Hugging Face Hub, such as
            "Helsinki-NLP/opus-mt-en-de".
        revision: of a model on the Hub: a branch, tag or commit.

    Raises:
        InputError: see `hub.download`; or a revision was given for a path.
    """
    if is_hub_name(model):
        return download(model, revision)
    if revision is not None:
        raise InputError(f"a revision is of a model on the Hub, and {model} is a path; remove it")
    return local_path(model)


class OpenedModel(NamedTuple):
    """A model that was found by its name: the model, and where it came from, for config.json."""

    model: ForeignModel
    origin: dict[str, Any]


def open_model(
    name: str,
    revision: str | None = None,
    format_name: str | None = None,
    import_options: ImportOptions | None = None,
) -> OpenedModel:
    """Returns a model by its path or its name on the Hub, see `locate` and `read_model`."""
    path = locate(name, revision)
    format_name = format_name or find_format(path)
    return OpenedModel(
        read_model(path, format_name, import_options), origin_of(name, path, format_name)
    )


def read_model(
    path: pathlib.Path, format_name: str | None = None, import_options: ImportOptions | None = None
) -> ForeignModel:
    """Returns the model in a folder or file.

    Args:
        path: of the model.
        format_name: one of `FORMATS`; None means the one that `find_format` returns.
        import_options: facts that the files do not state.

    Raises:
        InputError: it cannot be read, or is not a Transformer that this package supports.
    """
    format_name = format_name or find_format(path)
    check_choice("format", format_name, tuple(FORMATS))
    model = FORMATS[format_name].read(path, import_options or ImportOptions())
    if kind_of(model.vocabularies[0]) == "word":
        return dataclasses.replace(model, notes=[*model.notes, _TOKENIZED])
    return model


def origin_of(model: str, path: pathlib.Path, format_name: str) -> dict[str, Any]:
    """Returns where a model came from, without folders of this machine, for `import_run`."""
    if is_hub_name(model):
        return {"format": format_name, "model": model, "revision": path.name}
    return {"format": format_name, "model": path.resolve().name}


def import_run(model: ForeignModel, run_dir: pathlib.Path, origin: dict[str, Any]) -> RunDirectory:
    """Writes the run directory of a model atomically and returns it.

    Args:
        model: to import.
        run_dir: a path that does not exist, without commas.
        origin: where the model came from, for people to read in config.json.

    Raises:
        InputError: the model cannot be imported; the folder exists or cannot be written; or its
            path has a comma.

    Example:
        >>> path = locate("Helsinki-NLP/opus-mt-en-de")
        >>> run = import_run(read_model(path), pathlib.Path("runs/opus"), {"model": "opus-mt"})
        >>> Translator(run.load_model(), *run.vocabularies()).translate("Hello")
    """
    if run_dir.exists():
        raise InputError(f"{run_dir} exists already; give a path that does not")
    RunDirectory(run_dir).check_is_new()
    SearchConfig(**model.search)  # rejects impossible values
    transformer = model.to_model()
    configs = RunConfigs(
        transformer.config, None, TrainingConfig(), search=dict(model.search), origin=origin
    )
    with writing(str(run_dir)), atomic_folder(run_dir) as aside:
        RunDirectory(aside).write(configs, *model.vocabularies, transformer)
    return RunDirectory(run_dir)
