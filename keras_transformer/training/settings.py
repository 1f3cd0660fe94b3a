"""The settings of a run: its configurations, made from options that are given by name.

An option has the name of a field: of `DataConfig`, `TrainingConfig`, the configuration of any
architecture, or a task. "preset", "architecture" and "task" choose defaults. Nothing here loads
TensorFlow, so that a command can report a wrong option at once.
"""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.config import (
    DEFAULT_VOCABULARY_SIZE,
    TRAINING_PRESETS,
    DataConfig,
    JsonConfig,
    ModelConfig,
    SearchConfig,
    TrainingConfig,
    architectures,
    split_list,
)
from keras_transformer.config.training import preset_size
from keras_transformer.errors import InputError
from keras_transformer.files import local_paths
from keras_transformer.tasks import Task, TranslationTask, get_task, registered_tasks

Options = Mapping[str, Any]

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
    def corpora(self) -> DataConfig:
        """The data; `InputError` if there is none."""
        if self.data is None:
            raise InputError(
                "this run was imported and has no data: name the files to use, as in "
                "evaluate --source and --target; to train it further, give train another "
                "--run_dir, and --start_from with this one"
            )
        return self.data

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

    def with_vocabulary_sizes(self, source: int, target: int) -> "RunConfigs":
        """Returns them with the sizes that vocabularies came out with, which may be smaller."""
        sizes = {"vocabulary_size": source}
        if not self.corpora.shares_vocabulary:
            sizes["target_vocabulary_size"] = target
        return self._replace(model=self.model.replace(**sizes))

    def differences(self, changed: "RunConfigs", *, has_checkpoint: bool) -> list[str]:
        """Describes each setting of `changed` that differs, and that the run can no longer change.

        Before the first checkpoint everything about training may change: nothing is lost then.
        """
        kinds = (DataConfig, TrainingConfig)
        may_change = {name for kind in kinds for name in kind.fields_with(may_change="always")}
        if not has_checkpoint:
            may_change |= {*TrainingConfig.fields_with()}
            may_change |= {*DataConfig.fields_with(may_change="until_trained")}
        elif self.training.schedule in ("cosine", "linear"):  # which end at the last step
            may_change.discard("train_steps")
        before = self._flat()  # another architecture or task has other fields
        return [
            f"{name} is {before.get(name)!r} there and {value!r} here"
            for name, value in changed._flat().items()
            if name not in may_change and not _are_same(name, value, before.get(name))
        ]

    def _flat(self) -> dict[str, Any]:
        values: dict[str, Any] = {"task": self.task.name}
        for config in self.parts():
            values |= config.to_dict()
        return values

    def parts(self) -> tuple[JsonConfig, ...]:
        """Returns the configurations that options set."""
        return self.model, self.corpora, self.training, self.task


def _are_same(name: str, value: Any, before: Any) -> bool:
    """Whether two values of a setting are equal; paths are if they lead to the same files."""
    if name in DataConfig.fields_with(is_path=True) and value and before:
        value, before = (
            list(map(os.path.realpath, split_list(paths))) for paths in (value, before)
        )
    return bool(value == before)


def new_configs(options: Options) -> RunConfigs:
    """Returns the configurations of a new run, as if its vocabularies had the sizes asked for.

    Raises:
        InputError: an option is unknown or out of range, or cannot be combined with another.
    """
    _check_names(options)
    task_type = get_task(options.get("task", DEFAULT_TASK))
    task = task_type(**task_type.pick(options))
    data, training = _data(task, options), _training(task, options)
    _check_trains_random_weights(training.freeze)
    return _checked(RunConfigs(_model(task, data, options), data, training, task), options)


def fine_tuning_configs(origin: RunConfigs, path: str, options: Options) -> RunConfigs:
    """Returns the configurations of a new run that starts from a checkpoint of another one.

    Model and vocabularies are those of the other run, except for dropout rates and new tokens.

    Args:
        origin: the configurations of the other run.
        path: of that run or its checkpoint; absolute.
        options: of the new run.

    Raises:
        InputError: an option changes the model or the vocabularies, or none names data.
    """
    _check_names(options)
    if not names_data(options):
        raise InputError("--start_from needs text to train on; name it, as in --train_source")
    data_options = DataConfig.pick(options)
    vocabulary_fields = DataConfig.fields_with(for_vocabulary=True)
    if fixed := sorted(data_options.keys() & {*vocabulary_fields}):
        raise InputError(
            f"--{fixed[0]} cannot be combined with --start_from: the vocabularies are those of "
            f"{path}; remove --{fixed[0]}"
        )
    values, origin_values = _given_model(options), origin.model.to_dict()
    if "architecture" in options:
        values["architecture"] = options["architecture"]
    rates = {name: value for name, value in values.items() if name.endswith("dropout")}
    if wrong := [
        f"{name} is {origin_values.get(name)!r} there and {value!r} here"
        for name, value in values.items()
        if name not in rates and value != origin_values.get(name)
    ]:
        raise InputError(
            f"the model of {path} differs: {'; '.join(wrong)}; remove these options, or train "
            "without --start_from"
        )
    task_type = get_task(options.get("task", origin.task.name))
    changes = task_type.pick(options)
    is_same = task_type is type(origin.task)
    task = origin.task.replace(**changes) if is_same else task_type(**changes)
    inherited: dict[str, Any] = {}
    if origin.data is not None:
        inherited = {name: getattr(origin.data, name) for name in vocabulary_fields}
    rate = _FINE_TUNING_RATE * (origin.model.model_dim * _WARMUP_STEPS) ** -0.5
    data = _data(task, options, inherited)
    training = _training(task, options, {"learning_rate": float(f"{rate:.2g}")})
    return _checked(
        origin._replace(
            model=origin.model.replace(**rates),
            data=data,
            training=training,
            task=task,
            origin={**origin.origin, "start_from": path},
        ),
        options,
    )


def changed_configs(configs: RunConfigs, options: Options) -> RunConfigs:
    """Returns the configurations of a run with other values for some options.

    Raises:
        InputError: an option is unknown or out of range, cannot be combined with another, or
            belongs to another architecture or task than the run's.
    """
    _check_names(options)
    model, training, task = configs.model, configs.training, configs.task
    for name, value in (("architecture", model.architecture), ("task", task.name)):
        if options.get(name, value) != value:
            raise InputError(
                f"{name} is {value} in this run, and --{name}={options[name]} was given; remove "
                "it, or give another --run_dir"
            )
    _check_options_of(type(model), options)
    model_values, training_values = _given_model(options), TrainingConfig.pick(options)
    if training_values.get("stop_metric") is not None:
        task.find_metric(training_values["stop_metric"])
    if "start_from" not in configs.origin:
        _check_trains_random_weights(training_values.get("freeze"))
    if "preset" in options:
        name = options["preset"]
        if type(model).presets():
            name = type(model).preset_name(name)
        if "start_from" not in configs.origin:  # whose model is another run's
            model_values = _presets_for(type(model)).get(name, {}) | model_values
        training_values = TRAINING_PRESETS[preset_size(name)] | training_values
    return _checked(
        configs._replace(
            model=model.replace(**model_values),
            data=configs.corpora.replace(**_with_absolute_paths(DataConfig.pick(options))),
            training=training.replace(**training_values),
            task=task.replace(**type(task).pick(options)),
        ),
        options,
    )


def names_data(options: Options) -> bool:
    """Whether any option names data."""
    is_data = re.compile("dataset|.*_file|.*_source|.*_target")
    return any(map(is_data.fullmatch, DataConfig.pick(options)))


def _data(task: Task, options: Options, changes: Options | None = None) -> DataConfig:
    defaults = {**task.default_data, **({} if names_data(options) else task.built_in_data)}
    values = {**(changes or {}), **_with_absolute_paths(DataConfig.pick(options))}
    unused = DataConfig.unused_fields({**defaults, **values})
    defaults = {name: value for name, value in defaults.items() if name not in unused}
    data = DataConfig(**{**defaults, **values})
    task.check_data(data)
    return data


def _with_absolute_paths(options: Options) -> dict[str, Any]:
    """Returns options of the data with paths that lead to the same files from any folder."""
    paths = {
        name: ",".join(map(os.path.abspath, split_list(local_paths(options[name]))))
        for name in DataConfig.fields_with(is_path=True)
        if isinstance(options.get(name), str)
    }
    return {**options, **paths}


def _training(task: Task, options: Options, changes: Options | None = None) -> TrainingConfig:
    defaults = {} if "preset" in options else task.default_training
    values = {**defaults, **(changes or {}), **TrainingConfig.pick(options)}
    training = TrainingConfig.preset(options.get("preset", DEFAULT_PRESET), **values)
    if training.stop_metric is not None:
        task.find_metric(training.stop_metric)
    return training


def _model(task: Task, data: DataConfig, options: Options) -> ModelConfig:
    defaults = {} if "preset" in options else task.default_model
    size = data.vocabulary_size or DEFAULT_VOCABULARY_SIZE
    values = {**defaults, **_given_model(options), "vocabulary_size": size}
    if not data.shares_vocabulary:
        values["target_vocabulary_size"] = size
        values.setdefault("share_embeddings", "target")
    architecture = options.get("architecture")
    config = ModelConfig if architecture is None else architectures()[architecture]
    preset = options.get("preset", DEFAULT_PRESET)
    if not config.presets():  # one of the user's own may have none
        _check_options_of(config, options)
        sizes = _presets_for(config)[ModelConfig.preset_name(preset)]
        if "preset" not in options:  # the defaults that the class itself declares come first
            sizes = {name: value for name, value in sizes.items() if name not in vars(config)}
        return config(**(sizes | values))
    _check_options_of(type(config.preset(preset, vocabulary_size=size)), options)
    return config.preset(preset, **values)


def _presets_for(config: type[ModelConfig]) -> dict[str, dict[str, Any]]:
    """Returns the presets of an architecture by name.

    One without presets takes those of all others, as far as it has their fields.
    """
    presets, fields = config.presets() or ModelConfig.presets(), config.fields_with()
    return {
        name: {field: value for field, value in preset.items() if field in fields}
        for name, preset in presets.items()
    }


def option_names() -> set[str]:
    """Returns the names of all options."""
    configs: list[type[JsonConfig]] = [DataConfig, TrainingConfig, *architectures().values()]
    configs += map(get_task, registered_tasks())
    fields = {field for config in configs for field in config.fields_with()}
    return fields | {"preset", "architecture", "task"}


def _check_names(options: Options) -> None:
    """Raises `InputError` for an option that no configuration has."""
    known = option_names()
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=3) or sorted(known)
            raise InputError(f"there is no option {name!r}; close names: {', '.join(close)}")


def _check_options_of(config: type[ModelConfig], options: Options) -> None:
    """Raises `InputError` for an option that only other architectures have."""
    for name in _given_model(options):
        if name not in config.fields_with():
            others = [kind for kind in architectures().values() if name in kind.fields_with()]
            names = " and ".join(kind.architecture for kind in others)
            raise InputError(
                f"--{name} is a setting of architecture {names}, and this run's is "
                f"{config.architecture}; remove it, or give a new run another --architecture"
            )


def _given_model(options: Options) -> dict[str, Any]:
    """Returns the fields of any model that are given."""
    values: dict[str, Any] = {}
    for config in architectures().values():
        values |= config.pick(options)
    # The option of that name is a field of the data; a vocabulary may come out smaller.
    return {name: value for name, value in values.items() if not name.endswith("vocabulary_size")}


def _checked(configs: RunConfigs, options: Options) -> RunConfigs:
    """Returns the configurations if each option has an effect and positions suffice."""
    for config in configs.parts():
        config.check_effects(name for name, value in options.items() if value is not None)
    for name in _unused_with_dev_set(configs):
        if name in options:
            raise InputError(f"{name} has no effect in a run with a dev set; remove it")
    model: Any = configs.model
    if getattr(model, "positions", None) == "learned":
        first = model.first_position + model.max_position_offset
        needed = first + configs.corpora.max_length + 1  # and EOS
        if needed > model.max_positions:
            raise InputError(
                f"max_length={configs.corpora.max_length} needs {needed} learned positions, with "
                f"first_position and max_position_offset, and max_positions is "
                f"{model.max_positions}; lower max_length or raise max_positions"
            )
    return configs


def _unused_with_dev_set(configs: RunConfigs) -> Sequence[str]:
    """Returns the options of the task that have no effect in this run, since it has a dev set."""
    data = configs.corpora
    if (data.dev_source, data.dev_file, data.dataset) == (None, None, None):
        return ()
    return type(configs.task).fields_with(needs_dev_set=False)


def _check_trains_random_weights(freeze: str | None) -> None:
    if freeze is not None:
        raise InputError("--freeze would keep random weights; give --start_from too")
