"""Models by name: of a training run, an export, the package itself, another toolkit or the Hub."""

import pathlib
import warnings
from typing import Any

from keras_transformer import inference
from keras_transformer.errors import InputError
from keras_transformer.files import Path, local_path
from keras_transformer.interop import read_model, run_configs
from keras_transformer.interop.foreign import ForeignModel
from keras_transformer.serving.export import load_exported
from keras_transformer.serving.model_folder import check_version
from keras_transformer.training.run import RunDirectory, is_packaged, packaged_models


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
            checkpoint: of a run or a model of the package, see `Checkpoints.find`; others have
                only "auto".
            **search: fields of `SearchConfig` to change, such as `beam_size`; an export has its
                own.

        Raises:
            InputError: there is no such model, or it cannot be read; or a search option was given
                for an export, or a checkpoint for a model without any.

        Example:
            >>> translator = Translator.load("runs/numbers")
            >>> print(translator.translate("two hundred"))
            zweihundert
        """
        path = local_path(name)
        if is_packaged(name) or _is_run(path):
            run, _ = RunDirectory.of_checkpoint(name)
            models = run.load_model(checkpoint), *run.vocabularies()
            configs = run.configs()
        elif checkpoint != "auto":
            raise InputError(
                f"checkpoint={checkpoint!r} is for a training run, and {name} is none; remove it"
            )
        elif _is_export(path):
            check_version(path)  # suggests a version where the folder has several
            if search:
                raise InputError(
                    f"{', '.join(search)} was fixed when {path} was exported; remove it"
                )
            return load_exported(path)
        else:
            foreign = read_named(name)
            models, configs = (foreign.to_model(), *foreign.vocabularies), run_configs(foreign)
            for note in foreign.notes:
                warnings.warn(note, stacklevel=2)
        return cls(*models, configs.search_config(search), task=configs.task)


def read_named(name: Path) -> ForeignModel:
    """Returns a model of another toolkit or of the Hub.

    Raises:
        InputError: there is no such model, or it cannot be read.
    """
    if "/" not in str(name) and not local_path(name).exists():
        raise InputError(
            f"there is no model or folder {name}; the package has the models "
            f"{', '.join(packaged_models())}, a model of the Hub is named owner/name"
        )
    return read_model(name)


def _is_run(path: pathlib.Path) -> bool:
    is_run = (path / "config.json").is_file() and (path / "source.model").is_file()
    return is_run and not (path / "model.bin").exists()  # an export to CTranslate2


def _is_export(path: pathlib.Path) -> bool:
    return (path / "saved_model.pb").is_file() or (path / "models.config").is_file()
