"""How a model is trained."""

import dataclasses
from typing import Any, Literal

from typing_extensions import Self

from keras_transformer.config.base import JsonConfig
from keras_transformer.errors import InputError, check_choice


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(JsonConfig):
    """How a model is trained (Vaswani et al. 2017, section 5).

    Attributes:
        train_steps: updates in all.
        batch_tokens: about so many source and so many target tokens a batch, padding included.
        learning_rate: the highest rate, reached after `warmup_steps`; None means the paper's
            (model_dim * warmup_steps)^-0.5.
        warmup_steps: updates of linear warm-up.
        label_smoothing: probability spread over the whole vocabulary.
        accumulation_steps: parts into which each batch is cut to save memory; the update is that
            of the whole batch.
        clip_norm: the largest global norm of a gradient; None means no bound.
        weight_decay: share of each weight matrix taken off it an update, times the learning rate
            (Loshchilov and Hutter 2019).
        ema_decay: decay of an exponential moving average of the weights, which then is what
            checkpoints are validated, averaged and translated with; None means none.
        max_bad_steps: updates in a row that may be skipped because their gradient is not finite
            before the run stops.
        checkpoint_steps: updates between two checkpoints.
        validation_steps: updates between two validations on the dev set, a divisor or a multiple of
            `checkpoint_steps`; the end of training is validated too. Selection of the best
            checkpoints and early stopping consider only checkpoints that are validated; None
            means `checkpoint_steps`.
        keep_checkpoints: newest checkpoints kept on disk.
        keep_best: checkpoints kept besides for the best metric of the task on the dev set.
        average_last: newest checkpoints whose weights are averaged at the end (6.1).
        average_best: how many of the checkpoints with the best metric of the task to average, in
            place of the newest; None means the newest.
        stop_metric: what to watch to stop early: val_loss, val_perplexity, val_accuracy or the
            task's metric, such as bleu; None means not to stop early.
        stop_patience: checkpoints without a better `stop_metric` before the run stops.
        validation_time_share: bound on the share of the time that goes to searching the dev set for
            the task's metric at each checkpoint; it decides how many of its sentences are taken. 0
            turns it off.
        log_steps: updates between two lines of metrics.jsonl.
        sustained_tflops: TFLOP/s that a device sustains in training, for an estimate of the cost by
            time, as 2.8 (K80), 3.7 (K40), 6.0 (M40) and 9.5 (P100) in 6.1; None means no estimate.
        precision: the Keras dtype policy, or auto: mixed_bfloat16 on GPUs and on CPUs with
            instructions for it, where it is faster, else float32. A run keeps what auto chose.
        freeze: parts of the model whose weights stay as they are, separated by commas: the names of
            its layers, such as encoder, and embeddings for all tables; None means none. A table
            that is shared with the output projection stays there too.
        seed: seed of the initial weights, dropout and the order of the data.
    """

    train_steps: int = 100_000
    batch_tokens: int = 25_000
    learning_rate: float | None = None
    warmup_steps: int = 4000
    label_smoothing: float = 0.1
    accumulation_steps: int = 1
    clip_norm: float | None = None
    weight_decay: float = 0.0
    ema_decay: float | None = None
    max_bad_steps: int = 20
    checkpoint_steps: int = 1000
    validation_steps: int | None = None
    keep_checkpoints: int = 20
    keep_best: int = 1
    average_last: int = 5
    average_best: int | None = None
    stop_metric: str | None = None
    stop_patience: int = 10
    validation_time_share: float = 0.1
    log_steps: int = 100
    sustained_tflops: float | None = None
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16", "auto"] = "float32"
    freeze: str | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(
            1, "train_steps", "batch_tokens", "warmup_steps", "checkpoint_steps",
            "keep_checkpoints", "average_last", "average_best", "accumulation_steps",
            "max_bad_steps", "stop_patience", "log_steps", "validation_steps",
        )  # fmt: skip
        if self.seed >= 1 << 32:
            raise InputError(f"seed must be a number of 32 bits, got {self.seed}")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise InputError(f"clip_norm must be above 0, got {self.clip_norm}; or leave it out")
        self._check_at_least(
            0, "label_smoothing", "learning_rate", "seed", "weight_decay", "keep_best",
            "validation_time_share", "sustained_tflops",
        )  # fmt: skip
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise InputError(f"ema_decay must be between 0 and 1, got {self.ema_decay}")
        if self.validation_time_share > 1:
            raise InputError(
                f"validation_time_share must be at most 1, got {self.validation_time_share}"
            )
        # Any other name is that of the task's metric, which takes a search; see `Task.find_metric`.
        stops_by_search = self.stop_metric is not None and not self.stop_metric.startswith("val_")
        if not self.validation_time_share and (stops_by_search or self.average_best is not None):
            name = self.stop_metric if stops_by_search else "average_best"
            raise InputError(
                f"{name} needs the dev set to be searched, but validation_time_share is 0; raise it"
            )
        self._check_averages()
        if max(self.event_steps) % min(self.event_steps):
            raise InputError(
                f"validation_steps {self.validation_steps} must divide checkpoint_steps "
                f"{self.checkpoint_steps} or be a multiple of it"
            )
        if self.label_smoothing >= 1:
            raise InputError(f"label_smoothing must be below 1, got {self.label_smoothing}")

    def _check_averages(self) -> None:
        if self.average_best is not None and self.average_best > self.keep_best:
            raise InputError(
                f"average_best {self.average_best} is larger than keep_best {self.keep_best}; "
                "keep more of the best or average fewer"
            )
        if self.average_last > self.keep_checkpoints:
            raise InputError(
                f"average_last {self.average_last} is larger than keep_checkpoints "
                f"{self.keep_checkpoints}; keep more checkpoints or average fewer"
            )

    @property
    def event_steps(self) -> tuple[int, int]:
        """Updates between two checkpoints, and between two validations."""
        return self.checkpoint_steps, self.validation_steps or self.checkpoint_steps

    def is_validated(self, step: int) -> bool:
        """Whether the dev set is evaluated after so many updates."""
        return step % self.event_steps[1] == 0 or step == self.train_steps

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Returns the training for a model preset of this name, "rnn-tiny" like "tiny"."""
        name = name if name in TRAINING_PRESETS else name.rpartition("-")[2]
        check_choice("preset", name, tuple(TRAINING_PRESETS))
        return cls.from_dict(TRAINING_PRESETS[name] | changes)


TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(train_steps=20_000, batch_tokens=2048, warmup_steps=1000, average_last=5),
    "small": dict(train_steps=100_000, average_last=5),
    "base": dict(train_steps=100_000, average_last=5),
    "big": dict(train_steps=300_000, average_last=20),
}
