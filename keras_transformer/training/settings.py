"""The settings of a run: its configurations, made from options that are given by name.

An option has the name of a field: of `DataConfig`, `TrainingConfig`, the configuration of any
architecture, or a task. "preset", "architecture" and "task" choose defaults. Nothing here loads
TensorFlow, so that a command can report a wrong option at once.

config.json of a run holds the result, and from then on it is the truth: an option that is given
when the run resumes must have the value there, unless its field may change.
"""

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_transformer.config import (
    DEFAULT_VOCABULARY_SIZE,
    TRAINING_PRESETS,
    DataConfig,
    JsonConfig,
    ModelConfig,
    SearchConfig,
    TrainingConfig,
    TransformerConfig,
    architectures,
    split_list,
)
from keras_transformer.errors import InputError, check_choice
from keras_transformer.files import local_paths
from keras_transformer.tasks import Task, TranslationTask, get_task, registered_tasks

Options = Mapping[str, Any]

DEFAULT_ARCHITECTURE = TransformerConfig.architecture
DEFAULT_PRESET = "tiny"
DEFAULT_TASK = "translation"
# A run that starts from another one has a tenth of the paper's peak rate, (model_dim * 4000)^-0.5.
_FINE_TUNING_RATE = 0.1
_WARMUP_STEPS = 4000


class RunConfigs(NamedTuple):
    """The settings of a run.

    Attributes:
        model, task: the hyperparameters, and what the model is for.
        data, training: how it is trained; no data if it was imported.
        search: fields of `SearchConfig` with other defaults than the task's.
        origin: where weights that were not trained here came from, for people to read; in a run
            that started from another, "start_from" is the path to that run or checkpoint.
    """

    model: ModelConfig
    data: DataConfig | None
    training: TrainingConfig
    task: Task = TranslationTask()
    search: Mapping[str, Any] = {}
    origin: Mapping[str, Any] = {}

    @property
    def required_data(self) -> DataConfig:
        """The data; `InputError` if there is none."""
        if self.data is None:
            raise InputError(
                "this run was imported and has no data: name the files to use, as in "
                "evaluate --source and --target; to train it further, give train another "
                "--run_dir, and --start_from with this one"
            )
        return self.data

    @property
    def training_options(self) -> dict[str, Any] | None:
        """The options that the weights were trained with; None if they are not known.

        Those of a model of the package are part of its origin.
        """
        return self.origin.get("training") if self.data is None else self.training.to_dict()

    def search_config(self, changes: Mapping[str, Any] | None = None) -> SearchConfig:
        """Returns how the run searches, with some fields changed.

        The run's options that the requested search method does not use are dropped.
        """
        changes = changes or {}
        unused = SearchConfig.unused_by(changes["method"]) if "method" in changes else ()
        options = {name: value for name, value in self.search.items() if name not in unused}
        return self.task.search_config({**options, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Returns them as config.json holds them."""
        values: dict[str, Any] = {
            "model": self.model.to_dict(),
            "data": None if self.data is None else self.data.to_dict(),
            "training": None if self.data is None else self.training.to_dict(),
            "task": {"name": self.task.name} | self.task.to_dict(),
        }
        others = {"search": self.search, "origin": self.origin}
        return values | {name: dict(value) for name, value in others.items() if value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfigs":
        """Returns the configurations that `to_dict` wrote."""
        options = dict(values["task"])
        return cls(
            ModelConfig.from_dict(values["model"]),
            None if values["data"] is None else DataConfig.from_dict(values["data"]),
            TrainingConfig.from_dict(values["training"] or {}),
            get_task(options.pop("name")).from_dict(options),
            dict(values.get("search", {})),
            dict(values.get("origin", {})),
        )


def new_configs(options: Options) -> RunConfigs:
    """Returns the configurations of a new run, as if its vocabularies had the sizes asked for.

    Raises `InputError` if an option is unknown or out of range, or cannot be combined with another.
    """
    _check_names(options)
    task_type = get_task(options.get("task", DEFAULT_TASK))
    task = task_type(**task_type.pick(options))
    data = _data(task, options)
    configs = RunConfigs(_model(task, data, options), data, _training(task, options), task)
    return _checked(configs)


def fine_tuning_configs(origin: RunConfigs, path: str, options: Options) -> RunConfigs:
    """Returns the configurations of a new run that starts from a checkpoint of another one.

    That has the configurations `origin`, and an absolute path or a name. Model and vocabularies are
    its own, except for dropout rates: an option that changes them is an `InputError`, and so are
    options that name no data.
    """
    _check_names(options)
    if not names_data(options):
        raise InputError("--start_from needs text to train on; name it, as in --train_source")
    for_vocabulary = DataConfig.fields_with(for_vocabulary=True)
    model_options, model_values = _model_options(options), origin.model.to_dict()
    rates = {name: value for name, value in model_options.items() if name.endswith("dropout")}
    changes = [name for name in for_vocabulary if name in options] + [
        name
        for name, value in model_options.items()
        if name not in rates and value != model_values.get(name)
    ]
    if changes:
        raise InputError(
            f"--{changes[0]} cannot be combined with --start_from: model and vocabularies are "
            f"those of {path}; remove --{', --'.join(changes)}"
        )
    task_type, inherited = get_task(options.get("task", origin.task.name)), {}
    options_of_task = task_type.pick(options)
    is_same = task_type is type(origin.task)
    task = origin.task.replace(**options_of_task) if is_same else task_type(**options_of_task)
    if origin.data is not None:
        inherited = {name: getattr(origin.data, name) for name in for_vocabulary}
    rate = _FINE_TUNING_RATE * (origin.model.model_dim * _WARMUP_STEPS) ** -0.5
    configs = origin._replace(
        model=origin.model.replace(**rates),
        data=_data(task, options, inherited),
        training=_training(task, options, {"learning_rate": float(f"{rate:.2g}")}),
        task=task,
        origin={**origin.origin, "start_from": path},
    )
    return _checked(configs)


def changed_configs(configs: RunConfigs, options: Options) -> RunConfigs:
    """Returns the configurations with which a run resumes; some fields may have other values.

    Raises:
        InputError: an option is unknown or out of range, or differs from that of the run, which
            only fields with `may_change` may do.
    """
    _check_names(options)
    values = {**options, **_data_options(options)}
    if values.get("precision") == "auto":  # the run keeps what it has meant
        del values["precision"]
    if preset := values.pop("preset", None):
        values = TRAINING_PRESETS[preset] | values
        if "start_from" not in configs.origin:  # whose model is another run's
            values = _sizes(type(configs.model), preset) | values
    stored: dict[str, Any] = {"task": configs.task.name}
    for config in (configs.model, configs.required_data, configs.training, configs.task):
        stored |= config.to_dict()
    changes = {name: value for name, value in values.items() if value != stored.get(name)}
    may_change = {*DataConfig.fields_with(may_change=True)}
    may_change |= {*TrainingConfig.fields_with(may_change=True)}
    if configs.training.schedule == "cosine":  # which ends at the last step
        may_change.discard("train_steps")
    differences = [
        f"{name} is {stored.get(name)!r} there and {value!r} here"
        for name, value in changes.items()
        if name not in may_change
    ]
    if differences:
        raise InputError(
            f"the run has other settings: {'; '.join(differences)}; remove these options to "
            "resume it, or give another --run_dir, with --start_from to begin with its weights"
        )
    return _checked(
        configs._replace(
            data=configs.required_data.replace(**DataConfig.pick(changes)),
            training=configs.training.replace(**TrainingConfig.pick(changes)),
        )
    )


def names_data(options: Options) -> bool:
    """Whether any option names data."""
    is_data = re.compile("dataset|.*_file|.*_source|.*_target")
    return any(map(is_data.fullmatch, DataConfig.pick(options)))


def option_names() -> set[str]:
    """Returns the names of all options."""
    configs: list[type[JsonConfig]] = [DataConfig, TrainingConfig, *architectures().values()]
    configs += map(get_task, registered_tasks())
    fields = {field for config in configs for field in config.fields_with()}
    return fields | {"preset", "architecture", "task"}


def _data(task: Task, options: Options, inherited: Options | None = None) -> DataConfig:
    defaults = task.default_data
    values = {**(inherited or {}), **_data_options(options)}
    unused = DataConfig.unused_fields({**defaults, **values})
    defaults = {name: value for name, value in defaults.items() if name not in unused}
    data = DataConfig(**{**defaults, **values})
    task.check_data(data)
    return data


def _data_options(options: Options) -> dict[str, Any]:
    """Returns the options of the data, their paths such that they lead there from any folder."""
    values = DataConfig.pick(options)
    for name in DataConfig.fields_with(is_path=True):
        if isinstance(values.get(name), str):
            paths = split_list(local_paths(values[name]))
            values[name] = ",".join(map(os.path.abspath, paths))
    return values


def _training(task: Task, options: Options, changes: Options | None = None) -> TrainingConfig:
    defaults = {} if "preset" in options else task.default_training
    values = {**defaults, **(changes or {}), **TrainingConfig.pick(options)}
    return TrainingConfig.preset(options.get("preset", DEFAULT_PRESET), **values)


def _model(task: Task, data: DataConfig, options: Options) -> ModelConfig:
    defaults = {} if "preset" in options else task.default_model
    size = data.vocabulary_size or DEFAULT_VOCABULARY_SIZE
    values = {**defaults, **_model_options(options), "vocabulary_size": size}
    if not data.shares_vocabulary:
        values["target_vocabulary_size"] = size
        values.setdefault("share_embeddings", "target")
    config = architectures()[options.get("architecture", DEFAULT_ARCHITECTURE)]
    sizes = _sizes(config, options.get("preset", DEFAULT_PRESET))
    if "preset" not in options and "PRESETS" not in vars(config):  # a user's: its defaults first
        sizes = {name: value for name, value in sizes.items() if name not in vars(config)}
    return config.from_dict(sizes | values)


def _sizes(config: type[ModelConfig], preset: str) -> dict[str, Any]:
    """Returns the fields that a preset sets in an architecture.

    One without presets, such as a user's own, takes the Transformer's as far as it has fields.
    """
    presets = config.PRESETS or TransformerConfig.PRESETS
    check_choice("preset", preset, tuple(presets))
    return {name: presets[preset][name] for name in presets[preset] if name in config.fields_with()}


def _model_options(options: Options) -> dict[str, Any]:
    """Returns the options that are fields of any architecture, and its name."""
    values = {name: options[name] for name in ("architecture",) if name in options}
    for config in architectures().values():
        values |= config.pick(options)
    # The option of that name is a field of the data; a vocabulary may come out smaller.
    return {name: value for name, value in values.items() if not name.endswith("vocabulary_size")}


def _check_names(options: Options) -> None:
    """Raises `InputError` for an option that no configuration has."""
    known = option_names()
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=3) or sorted(known)
            raise InputError(f"there is no option {name!r}; close names: {', '.join(close)}")


def _checked(configs: RunConfigs) -> RunConfigs:
    """Returns the configurations if their parts go together."""
    data, training, model = configs.required_data, configs.training, configs.model
    if training.stop_metric is not None:
        configs.task.find_metric(training.stop_metric)
    if training.freeze is not None and "start_from" not in configs.origin:
        raise InputError("--freeze would keep random weights; give --start_from too")
    if getattr(model, "positions", None) == "learned":
        limits: Any = model
        needed = limits.first_position + data.max_length + 1  # and EOS
        if needed > limits.max_positions:
            raise InputError(
                f"max_length={data.max_length} needs {needed} learned positions, and max_positions "
                f"is {limits.max_positions}; lower max_length or raise max_positions"
            )
    return configs
