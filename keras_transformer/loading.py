"""Models by name: of a training run, an export, the package itself, another toolkit or the Hub."""

import pathlib
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_transformer import inference
from keras_transformer.errors import InputError
from keras_transformer.files import Path, local_path
from keras_transformer.interop import read_model, run_configs
from keras_transformer.models import Seq2SeqModel
from keras_transformer.pretrained import load_pretrained, pretrained_models
from keras_transformer.serving.export import load_exported
from keras_transformer.serving.model_folder import check_version
from keras_transformer.text import Vocabulary
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs


class NamedModel(NamedTuple):
    """A model that is no run of this machine.

    Attributes:
        model, source, target: the model and its vocabularies.
        configs: its settings, without data and training.
        notes: lines for the user.
    """

    model: Seq2SeqModel
    source: Vocabulary
    target: Vocabulary
    configs: RunConfigs
    notes: Sequence[str] = ()

    def write_run(self, run_dir: Path) -> RunDirectory:
        """Writes the model as a run, to fine-tune or to give to commands, and returns the run."""
        run = RunDirectory(run_dir)
        run.write(self.configs, self.source, self.target, self.model)
        return run


def is_pretrained(name: Path) -> bool:
    """Whether a name is that of a model in the package; `./en-de` is the folder."""
    return isinstance(name, str) and name in pretrained_models()


def find_model(name: Path) -> NamedModel:
    """Returns a model of the package, of another toolkit or of the Hub by its name.

    Raises:
        InputError: there is no such model, or it cannot be read.
    """
    if is_pretrained(name):
        return NamedModel(*load_pretrained(str(name)))
    path = local_path(name)
    if "/" not in str(name) and not path.exists():
        raise InputError(
            f"there is no model or folder {name}; the package has the models "
            f"{', '.join(pretrained_models()) or 'none'}, a model of the Hub is named owner/name"
        )
    foreign = read_model(name)
    configs = run_configs(foreign)
    return NamedModel(foreign.to_model(), *foreign.vocabularies, configs, foreign.notes)


class Translator(inference.Translator):
    __doc__ = inference.Translator.__doc__

    @classmethod
    def load(cls, name: Path, checkpoint: str = "auto", **search: Any) -> inference.Translator:
        """Returns the translator that a name stands for, and warns of what its files lack.

        Args:
            name: of a model in the package, such as "en-de", which needs no network; the folder of
                a training run; the folder of an exported version; the folder or file of another
                toolkit's model; or the name of a model on the Hugging Face Hub, such as
                "Helsinki-NLP/opus-mt-en-de", which is downloaded. "./en-de" is a folder.
            checkpoint: of a run, see `Checkpoints.find`; other models have only "auto".
            **search: fields of `SearchConfig` to change, such as `beam_size`; an export has its
                own.

        Raises:
            InputError: there is no such model, or it cannot be read; or a search option was given
                for an export, or a checkpoint for anything but a run.

        Example:
            >>> translator = Translator.load("runs/numbers")
            >>> print(translator.translate("two hundred"))
            zweihundert
        """
        path = local_path(name)
        if not is_pretrained(name) and _is_run(path):
            run = RunDirectory(path)
            configs, model = run.configs(), run.load_model(checkpoint)
            vocabularies = run.vocabularies()
        elif checkpoint != "auto":
            raise InputError(
                f"checkpoint={checkpoint!r} is for a training run, and {name} is none; remove it"
            )
        elif not is_pretrained(name) and _is_export(path):
            check_version(path)  # suggests a version where the folder has several
            if search:
                raise InputError(
                    f"{', '.join(search)} was fixed when {path} was exported; remove it"
                )
            return load_exported(path)
        else:
            named = find_model(name)
            model, configs, vocabularies = named.model, named.configs, (named.source, named.target)
            for note in named.notes:
                warnings.warn(note, stacklevel=2)
        return cls(model, *vocabularies, configs.search_config(search), task=configs.task)


def _is_run(path: pathlib.Path) -> bool:
    is_run = (path / "config.json").is_file() and (path / "source.model").is_file()
    return is_run and not (path / "model.bin").exists()  # an export to CTranslate2


def _is_export(path: pathlib.Path) -> bool:
    return (path / "saved_model.pb").is_file() or (path / "models.config").is_file()
