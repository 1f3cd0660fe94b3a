"""Translators by name: of a training run, an export, or a model of another toolkit or the Hub."""

from typing import Any

from keras_transformer import inference
from keras_transformer.errors import InputError
from keras_transformer.files import Path, local_path
from keras_transformer.inference import BatchTranslator
from keras_transformer.interop import locate, read_model
from keras_transformer.serving.export import load_exported
from keras_transformer.serving.model_folder import check_version
from keras_transformer.tasks import TranslationTask
from keras_transformer.training import RunDirectory


class Translator(inference.Translator):
    __doc__ = inference.Translator.__doc__

    @classmethod
    def load(cls, name: Path, checkpoint: str = "auto", **search: Any) -> BatchTranslator:
        """Returns the translator that a name stands for.

        Args:
            name: the folder of a training run; the folder of an exported version; the folder or
                file of another toolkit's model; or the name of a model on the Hugging Face Hub,
                which is downloaded.
            checkpoint: of a run, see `Checkpoints.find`.
            **search: fields of `SearchConfig` to change, such as `beam_size`; an export has its
                own.

        Raises:
            InputError: there is no such model, or it cannot be read; or a search option was given
                for an export.

        Example:
            >>> translator = Translator.load("runs/numbers")
            >>> print(translator.translate("two hundred"))
            zweihundert
        """
        path = local_path(name)
        is_run = (path / "config.json").is_file() and (path / "source.model").is_file()
        if is_run and not (path / "model.bin").exists():  # an export to CTranslate2
            run = RunDirectory(path)
            configs = run.configs()
            model, vocabularies = run.load_model(checkpoint), run.vocabularies()
            task, config = configs.task, configs.search_config(search)
        elif (path / "saved_model.pb").is_file() or (path / "models.config").is_file():
            check_version(path)  # suggests a version where the folder has several
            if search:
                raise InputError(
                    f"{', '.join(search)} was fixed when {path} was exported; remove it"
                )
            return load_exported(path)
        else:
            foreign = read_model(locate(str(name)))
            model, vocabularies = foreign.to_model(), foreign.vocabularies
            task = TranslationTask()
            config = task.search_config({**foreign.search, **search})
        return cls(model, *vocabularies, config, task=task).with_cached_projection()
