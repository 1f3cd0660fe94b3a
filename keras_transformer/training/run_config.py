"""What a run was asked for: `config.json` of its directory."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_transformer.config import DataConfig, ModelConfig, TrainingConfig
from keras_transformer.tasks import Task, TranslationTask, get_task


class RunConfigs(NamedTuple):
    """What a run was asked for."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    task: Task = TranslationTask()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns them as config.json holds them."""
        values = {name: config.to_dict() for name, config in self._asdict().items()}
        values["task"] = {"name": self.task.name} | values["task"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfigs":
        """Returns what `to_dict` was called on."""
        options = dict(values["task"])
        return cls(
            ModelConfig.from_dict(values["model"]),
            DataConfig.from_dict(values["data"]),
            TrainingConfig.from_dict(values["training"]),
            get_task(options.pop("name")).from_dict(options),
        )

    def flat(self) -> dict[str, Any]:
        """Returns all values by the names of their flags, the name of the task as "task"."""
        values: dict[str, Any] = {"task": self.task.name}
        for config in self:
            values |= config.to_dict()
        return values
