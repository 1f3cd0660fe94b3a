"""How a model is trained."""

import dataclasses
from typing import Any, Literal

from typing_extensions import Self

from keras_transformer.config.options import JsonConfig, option
from keras_transformer.errors import InputError, check_choice


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(JsonConfig):
    """How a model is trained (Vaswani et al. 2017, section 5)."""

    train_steps: int = option(100_000, "Number of updates.", minimum=1, may_change=True)
    batch_tokens: int = option(
        25_000,
        "Most tokens of a batch on each side, padding included.",
        minimum=1,
    )
    batch_sentences: int | None = option(
        None, "Most sentence pairs of a batch; batch_tokens limits it too.", minimum=1
    )
    schedule: Literal["paper", "cosine", "constant"] = option(
        "paper",
        "Learning rate after the warm-up: paper (with the inverse square root of the step, 5.3), "
        "cosine (to 0 at train_steps), or constant.",
    )
    learning_rate: float | None = option(
        None,
        "Peak learning rate, reached after warmup_steps. Default: (model_dim * warmup_steps) "
        "** -0.5, as in the paper (5.3).",
        minimum=0,
    )
    warmup_steps: int = option(
        4000,
        "Updates of linear warm-up. With schedule paper a shorter warm-up raises the peak; set "
        "learning_rate too.",
        minimum=1,
    )
    label_smoothing: float = option(
        0.1, "Probability that is spread over the whole vocabulary (5.4).", minimum=0, below=1
    )
    accumulation_steps: int = option(
        1,
        "Split each batch into this many parts to save memory; batch size and update stay the "
        "same, but for rounding and dropout masks.",
        minimum=1,
        may_change=True,
    )
    clip_norm: float | None = option(
        None, "Largest global norm of an update's gradient. Default: no clipping.", above=0
    )
    weight_decay: float = option(
        0.0,
        "Decoupled weight decay of matrices, times the learning rate (Loshchilov and Hutter 2019).",
        minimum=0,
    )
    checkpoint_steps: int = option(1000, "Updates between checkpoints, and validations.", minimum=1)
    keep_checkpoints: int = option(
        20,
        "Newest checkpoints to keep, at least average_last; the best one stays too.",
        minimum=1,
        may_change=True,
    )
    average_last: int = option(
        5,
        "Average this many of the newest checkpoints at the end (6.1).",
        minimum=1,
        may_change=True,
    )
    average_best: int | None = option(
        None,
        "Average this many of the best checkpoints by the dev metric, instead of the newest.",
        minimum=1,
        may_change=True,
        needs_dev_set=True,
    )
    stop_metric: str | None = option(
        None,
        "Stop early by this dev metric: val_loss, val_perplexity, val_accuracy or the metric "
        "of the task, for example bleu. Default: no early stopping.",
        may_change=True,
        needs_dev_set=True,
    )
    stop_patience: int = option(
        10,
        "Stop after this many validations in a row without a better stop_metric.",
        minimum=1,
        may_change=True,
        needs={"stop_metric": ()},
    )
    validation_time_share: float = option(
        0.1,
        "Rough share of training time for translating the dev set, of which it scores at least "
        "128 sentences. 0: none. With a small batch_sentences, give a lower share.",
        minimum=0,
        maximum=1,
        needs_dev_set=True,
    )
    log_steps: int = option(
        100, "Updates between lines of metrics.jsonl.", minimum=1, may_change=True
    )
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16", "auto"] = option(
        "float32",
        "Keras dtype policy. auto chooses mixed_bfloat16 on GPUs of compute capability 8.0 or "
        "higher and on CPUs with fast bfloat16 (AMD's AVX512_BF16, Intel's AMX, Arm's BF16), "
        "mixed_float16 on GPUs of 7.x, else float32; a run keeps the choice.",
    )
    freeze: str | None = option(
        None,
        "Layers that are not trained, separated by commas, for example encoder; embeddings "
        "stands for all tables. A table shared with the output projection is frozen there too.",
    )
    seed: int = option(
        1, "Seed of the initial weights, dropout and data order.", minimum=0, below=1 << 32
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Any other name is that of the task's metric, which takes a search; see `Task.find_metric`.
        stops_by_search = self.stop_metric is not None and not self.stop_metric.startswith("val_")
        if not self.validation_time_share and (stops_by_search or self.average_best is not None):
            name = self.stop_metric if stops_by_search else "average_best"
            raise InputError(
                f"{name} needs the dev set to be searched, but validation_time_share is 0; raise it"
            )
        if self.schedule == "cosine" and self.warmup_steps >= self.train_steps:
            raise InputError(
                f"schedule cosine needs steps after its warm-up, but warmup_steps is "
                f"{self.warmup_steps:,} of {self.train_steps:,} train_steps; lower it"
            )

    def is_checkpoint_step(self, step: int) -> bool:
        """Whether the dev set is evaluated and a checkpoint written after so many updates."""
        return step % self.checkpoint_steps == 0 or step == self.train_steps

    def is_log_step(self, step: int) -> bool:
        """Whether a row of metrics is written after so many updates."""
        return step % self.log_steps == 0 or self.is_checkpoint_step(step)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Returns the training of a model's preset."""
        check_choice("preset", name, tuple(TRAINING_PRESETS))
        return cls.from_dict(TRAINING_PRESETS[name] | changes)


_TINY = dict(train_steps=20_000, batch_tokens=2048, warmup_steps=1000, average_last=5)
TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _TINY,
    "small": dict(train_steps=50_000, batch_tokens=8192, average_last=5),
    "base": dict(train_steps=100_000, average_last=5),
    "student": dict(train_steps=100_000, average_last=5),
    "big": dict(train_steps=300_000, average_last=20),
    "tiny-fast": _TINY,
    "tiny-student": _TINY,
}
