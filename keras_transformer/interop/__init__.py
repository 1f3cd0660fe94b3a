"""Models of other toolkits: finds the model and its format, reads it, writes a run directory of it.

A toolkit's reader is one file, and describes the model as a `ForeignModel` (`foreign.py`).
`ctranslate2.py` and `transformers.py` also write their format.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError, check_choice
from keras_transformer.files import Path, local_path
from keras_transformer.interop.ctranslate2 import is_ctranslate2, read_ctranslate2
from keras_transformer.interop.fairseq import is_fairseq, read_fairseq
from keras_transformer.interop.foreign import ForeignModel, ImportOptions
from keras_transformer.interop.hub import download, is_hub_name
from keras_transformer.interop.marian import is_marian, read_marian
from keras_transformer.interop.opennmt_tf import is_opennmt_tf, read_opennmt_tf
from keras_transformer.interop.transformers import is_transformers, read_transformers
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs

_TOKENIZED = (
    "The text must be tokenized as for the model's training, with spaces between tokens; where "
    "they are pieces such as un@@, translate with --remove_bpe."
)


class Format(NamedTuple):
    """A format: whether a path holds a model in it, its reader, and the options that it reads."""

    is_there: Callable[[pathlib.Path], bool]
    read: Callable[[pathlib.Path, ImportOptions], ForeignModel]
    options: tuple[str, ...] = ()


FORMATS = {
    "transformers": Format(is_transformers, read_transformers, ("spms",)),
    "marian": Format(is_marian, read_marian, ("vocabularies", "spms")),
    "fairseq": Format(is_fairseq, read_fairseq, ("vocabularies", "spms")),
    "opennmt_tf": Format(is_opennmt_tf, read_opennmt_tf, ("vocabularies", "spms", "num_heads")),
    "ctranslate2": Format(is_ctranslate2, read_ctranslate2, ("spms",)),
}


def read_model(
    model: Path,
    format_name: str | None = None,
    import_options: ImportOptions | None = None,
) -> ForeignModel:
    """Returns a model of another toolkit, with its `origin` and notes for the user.

    Args:
        model: a folder or file; or the name of a model on the Hugging Face Hub, such as
            "Helsinki-NLP/opus-mt-en-de", which is downloaded; with "@" and a branch, tag or commit
            for another revision than the newest.
        format_name: one of `FORMATS`; None means the one whose files are there.
        import_options: facts that the files do not state.

    Raises:
        InputError: it cannot be downloaded or read, or is not a Transformer that this package
            supports; or an option is not for its format.
    """
    is_on_hub = is_hub_name(str(model))
    path = download(str(model)) if is_on_hub else local_path(model)
    format_name = format_name or _find_format(path)
    check_choice("format", format_name, tuple(FORMATS))
    format, options = FORMATS[format_name], import_options or ImportOptions()
    for name, value in options._asdict().items():
        if value != ImportOptions._field_defaults[name] and name not in format.options:
            raise InputError(f"{name} are not for models of {format_name}; remove the option")
    foreign = format.read(path, options)
    name = str(model).partition("@")[0] if is_on_hub else path.resolve().name
    origin = {"format": format_name, "model": name}
    origin |= {"revision": path.name} if is_on_hub else {}
    foreign = dataclasses.replace(foreign, origin=origin)
    if codes := sorted(foreign.vocabularies[0].language_codes):
        start = ", ".join(codes[:8]) + ", ..." * (len(codes) > 8)
        foreign.notes.append(f"Begin a sentence with the code of a language: {start}.")
    if foreign.vocabularies[0].cuts_words_apart:
        foreign.notes.append(_TOKENIZED)
    return foreign


def _find_format(path: pathlib.Path) -> str:
    """Returns the format of a folder or file; `InputError` if it has none, or several."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give the folder of a model, or its file")
    if path.suffix == ".keras":
        raise InputError(
            f"{path} is a Keras model, without vocabularies; load it by keras.models.load_model, "
            "and give it to Translator(model, vocabulary)"
        )
    names = [name for name, format in FORMATS.items() if format.is_there(path)]
    if len(names) != 1:
        raise InputError(
            f"{path} must have the files of one format of {', '.join(FORMATS)}, and has those of "
            f"{' and '.join(names) or 'none'}"
        )
    return names[0]


def run_configs(model: ForeignModel) -> RunConfigs:
    """Returns the settings of a run of the model; it searches as its toolkit does."""
    search, origin = dict(model.search), dict(model.origin)
    return RunConfigs(model.config, None, TrainingConfig(), search=search, origin=origin)


def import_run(model: ForeignModel, run_dir: Path) -> RunDirectory:
    """Writes the run directory of a model and returns it.

    Raises:
        InputError: the model cannot be imported; or the folder holds a run already, cannot be
            written, or has a comma in its path.

    Example:
        >>> run = import_run(read_model("Helsinki-NLP/opus-mt-en-de"), "runs/opus")
        >>> Translator(run.load_model(), *run.vocabularies()).translate("Hello")
    """
    configs, run = run_configs(model), RunDirectory(run_dir)
    configs.search_config()  # rejects impossible values
    run.write(configs, *model.vocabularies, model.to_model())
    return run
