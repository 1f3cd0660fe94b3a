"""The numbers that models are compared by."""

import dataclasses
import math

# What metrics.jsonl and the logs of `fit` hold of training itself.
TRAINING_VALUES = {
    "step", "seconds", "loss", "perplexity", "accuracy", "padding", "learning_rate",
    "tokens_per_second", "target_tokens", "flops", "padded_flops", "sustained_flops",
    "skipped_steps",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that models are compared by.

    Attributes:
        name: in metrics.jsonl, in checkpoint_metrics.json and after --stop_metric.
        label: on the terminal and in plots; the name by default.
        higher_is_better: its direction.
    """

    name: str
    label: str = ""
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name)

    def rank(self, value: float) -> float:
        """Returns a number that is the higher the better the value is."""
        return value if self.higher_is_better else -value

    def of_dev_set(self, number: int) -> "Metric":
        """Returns the metric of a dev set by its number; that of the first has the plain name."""
        if number == 1:
            return self
        return dataclasses.replace(
            self, name=f"{self.name}_{number}", label=f"{self.label} ({number})"
        )

    @property
    def worst(self) -> float:
        """What stands for a value that is undefined."""
        return 0.0 if self.higher_is_better else math.inf


# Of the dev set without any search, whatever the task.
VALIDATION_METRICS = (
    Metric("val_loss", higher_is_better=False),
    Metric("val_perplexity", higher_is_better=False),
    Metric("val_accuracy"),
)
