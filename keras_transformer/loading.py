"""Models by name: of a training run, an export, the package itself, another toolkit or the Hub."""

import os
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.files import Path, local_path
from keras_transformer.inference import LocalTranslator
from keras_transformer.interop import read_model, run_configs
from keras_transformer.models import Seq2SeqModel
from keras_transformer.serving.export import load_exported
from keras_transformer.text import Vocabulary
from keras_transformer.training.checkpoints import START
from keras_transformer.training.metrics import training_cost
from keras_transformer.training.run import RunDirectory, is_packaged, packaged_models
from keras_transformer.training.settings import RunConfigs


class NamedModel(NamedTuple):
    """What a name stands for, before a model is made of it.

    Attributes:
        label: what to call it.
        configs: its settings.
        vocabularies: of source and target.
        build: returns the model in a dtype policy, such as "float32".
        notes: lines for the user about what the files of another toolkit lack.
        run, checkpoint: where the weights are; no run if they are another toolkit's.
    """

    label: str
    configs: RunConfigs
    vocabularies: tuple[Vocabulary, Vocabulary]
    build: Callable[[str], Seq2SeqModel]
    notes: Sequence[str] = ()
    run: RunDirectory | None = None
    checkpoint: str = START

    @property
    def digest(self) -> str | None:
        """The SHA-256 of the checkpoint's file."""
        return None if self.run is None else self.run.checkpoints().digest(self.checkpoint)

    @property
    def cost(self) -> dict[str, float]:
        """What the run had cost at the checkpoint, or in all; empty if it is not known."""
        return {} if self.run is None else training_cost(self.run.metrics_path, self.checkpoint)

    def describe(self) -> dict[str, Any]:
        """Returns the entries of a model card, without machine and folders.

        Returns:
            "checkpoint", "task", and "origin", of weights that were not trained here. If the run
            has trained: "settings" of its training, and its "cost".
        """
        configs, origin = self.configs, dict(self.configs.origin)
        if "start_from" in origin:
            origin["start_from"] = os.path.basename(origin["start_from"])
        task = configs.to_dict()["task"]
        description = {"checkpoint": self.checkpoint, "task": task, "origin": origin}
        if self.checkpoint == START:
            return description
        return description | {"settings": configs.training.to_dict(), "cost": self.cost}


def open_run(run: RunDirectory, checkpoint: str = "auto") -> NamedModel:
    """Returns the model of a run's checkpoint, see `Checkpoints.find`.

    Raises:
        InputError: there is no such run or checkpoint. A damaged one is reported when it is built.
    """
    configs, name = run.configs(), run.checkpoints().find(checkpoint)

    def build(dtype: str) -> Seq2SeqModel:
        return run.load_model(name, dtype=dtype)

    label = f"{run.path} ({name})"
    return NamedModel(label, configs, run.vocabularies(), build, run=run, checkpoint=name)


def open_model(name: Path, checkpoint: str = "auto") -> NamedModel:
    """Returns the model that a name stands for, which is no export; see `Translator.load`."""
    path = local_path(name)
    if is_packaged(name) or _is_run(path):
        run, _ = RunDirectory.of_checkpoint(name)
        return open_run(run, checkpoint)._replace(label=str(name))
    if checkpoint != "auto":
        raise InputError(
            f"checkpoint={checkpoint!r} is for a training run, and {name} is none; remove it"
        )
    if "/" not in str(name) and not path.exists():
        raise InputError(
            f"there is no model or folder {name}; the package has the models "
            f"{', '.join(packaged_models())}, a model of the Hub is named owner/name"
        )
    foreign = read_model(name)
    configs, vocabularies = run_configs(foreign), foreign.vocabularies
    return NamedModel(str(name), configs, vocabularies, foreign.to_model, foreign.notes)


class Translator(LocalTranslator):
    __doc__ = LocalTranslator.__doc__

    @classmethod
    def load(cls, name: Path, checkpoint: str = "auto", **search: Any) -> LocalTranslator:
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
        files = path / "saved_model.pb", path / "models.config"
        if not is_packaged(name) and any(file.is_file() for file in files):
            if fixed := [*search, *["checkpoint"] * (checkpoint != "auto")]:
                raise InputError(
                    f"{', '.join(fixed)} was fixed when {path} was exported; remove it"
                )
            return load_exported(path)
        model = open_model(name, checkpoint)
        for note in model.notes:
            warnings.warn(note, stacklevel=2)
        configs = model.configs
        settings = configs.search_config(search)
        return cls(model.build("float32"), *model.vocabularies, settings, task=configs.task)


def _is_run(path: pathlib.Path) -> bool:
    is_run = (path / "config.json").is_file() and (path / "source.model").is_file()
    return is_run and not (path / "model.bin").exists()  # an export to CTranslate2
