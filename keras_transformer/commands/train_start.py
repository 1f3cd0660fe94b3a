"""What a new run takes from the one it starts from: weights, vocabularies and model."""

import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from keras_transformer.commands import config_flags, train_configs
from keras_transformer.config import VOCABULARY_FIELDS, DataConfig
from keras_transformer.errors import InputError
from keras_transformer.tasks import Task, get_task

if TYPE_CHECKING:
    from keras_transformer.models import Seq2SeqModel
    from keras_transformer.training import RunConfigs, RunDirectory

# The highest rate by default: a tenth of the paper's, (model_dim * 4000)^-0.5.
_RATE = 0.1
_WARMUP_STEPS = 4000


class Start(NamedTuple):
    """A run that another one starts from, and the name of its checkpoint."""

    run: "RunDirectory"
    checkpoint: str

    @classmethod
    def find(cls, path: str) -> "Start":
        """Returns the run in a folder, or the one that a path of a checkpoint belongs to."""
        from keras_transformer.training import RunDirectory

        where = pathlib.Path(path)
        *_, folder, name = ("", "", *where.parts)
        if folder == "checkpoints" and not (where / "config.json").is_file():
            return cls(RunDirectory(where.parents[1]), name.removesuffix(".index"))
        return cls(RunDirectory(path), "auto")

    def load_model(self, freeze: str | None) -> "Seq2SeqModel":
        """Returns the model; `InputError` where it lacks a part that is to be frozen."""
        from keras_transformer.training import trainer

        model = self.run.load_model(self.checkpoint)
        trainer.freeze(model, freeze)
        return model

    def new_configs(self, start_from: str) -> "RunConfigs":
        """Returns the configurations of the new run, of which some are this one's.

        Raises:
            InputError: a flag is of the model or the vocabularies, and says otherwise; or none
                names data.
        """
        ours = self.run.configs()
        model_values = self._check_flags(ours)
        task = _task(ours.task)
        kept: dict[str, Any] = {}
        if ours.data is not None:
            kept = {name: getattr(ours.data, name) for name in VOCABULARY_FIELDS}
        rate = _RATE * (ours.model.model_dim * _WARMUP_STEPS) ** -0.5
        return ours._replace(
            model=ours.model.replace(**model_values),
            data=train_configs.data_config(task, kept),
            training=train_configs.training_config(task, {"learning_rate": float(f"{rate:.2g}")}),
            task=task,
            origin={**ours.origin, "start_from": absolute(start_from)},
        )

    def _check_flags(self, ours: "RunConfigs") -> dict[str, Any]:
        """Returns the dropout rates that are given: all else of the model stays."""
        if not train_configs.names_data():
            raise InputError("--start_from needs text to train on; name it, as in --train_source")
        if given := sorted(config_flags.given_flags(DataConfig).keys() & {*VOCABULARY_FIELDS}):
            raise InputError(
                f"--{given[0]} is of vocabularies that are made, and with --start_from they are "
                f"those of {self.run.path}; leave it out"
            )
        values, theirs = train_configs.given_model_values(), ours.model.to_dict()
        if flags.FLAGS["architecture"].present:
            values["architecture"] = flags.FLAGS.architecture
        rates = {name: value for name, value in values.items() if name.endswith("dropout")}
        if wrong := [
            f"{name} is {theirs.get(name)!r} there and {value!r} here"
            for name, value in values.items()
            if name not in rates and value != theirs.get(name)
        ]:
            raise InputError(
                f"the model of {self.run.path} is another: {'; '.join(wrong)}; leave these flags "
                "out, or train without --start_from"
            )
        return rates


def absolute(path: str) -> str:
    """Returns a path as config.json has it."""
    return str(pathlib.Path(path).resolve())


def _task(theirs: Task) -> Task:
    """Returns the task of the new run: the same one with other options, or another."""
    name = flags.FLAGS.task if flags.FLAGS["task"].present else theirs.name
    options = config_flags.given_task_options(get_task(name))
    return theirs.replace(**options) if name == theirs.name else get_task(name)(**options)
