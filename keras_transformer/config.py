"""Hyperparameters of model, data, training and search: frozen dataclasses that check themselves.

One place lists every hyperparameter; layers take plain numbers and never see these classes.
`ModelConfig.preset("base")` gives the paper's settings, `to_json` and `from_json` a round trip.
"""

import dataclasses
import json
import math
from typing import Any, Literal, get_args, get_origin

from typing_extensions import Self

from keras_transformer.errors import InputError

# Ids of the four symbols that every vocabulary reserves.
PAD_ID = 0
UNKNOWN_ID = 1
START_ID = 2
END_ID = 3


class JsonConfig:
    """JSON round trip and validation shared by the frozen dataclasses below."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as the plain Python values that JSON has."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def to_json(self) -> str:
        """Returns the fields as indented JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds the configuration; an unknown field raises `InputError`."""
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise InputError(
                f"{cls.__name__} has no field {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Builds the configuration from the text that `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, checked like any other."""
        return type(self).from_dict(self.to_dict() | changes)

    def _check_choices(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            choices = get_args(field.type)
            if get_origin(field.type) is Literal and value not in choices:
                raise InputError(f"{field.name} must be one of {', '.join(choices)}, got {value!r}")

    def _check_at_least(self, minimum: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InputError(f"{name} must be at least {minimum}, got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(JsonConfig):
    """Hyperparameters of `Transformer` (Vaswani et al. 2017, section 3 and Table 3).

    Attributes:
        vocabulary_size: symbols of the source vocabulary, V.
        target_vocabulary_size: symbols of the target vocabulary; None where it is the same one.
        num_layers: layers of the encoder and of the decoder, N.
        model_dim: width of every sub-layer's output, d_model.
        feed_forward_dim: inner width of the feed-forward layers, d_ff.
        num_heads: attention heads, h.
        key_dim, value_dim: width of one head, d_k and d_v; None means model_dim / num_heads.
        dropout: rate on each sub-layer's output, before the residual sum (5.4).
        embedding_dropout: rate on the sum of embedding and position; None means `dropout`, as in
            the paper.
        attention_dropout: rate on the attention weights; none in the paper's text.
        feed_forward_dropout: rate inside the feed-forward layer, after its ReLU; none in the
            paper's text.
        share_embeddings: "all" shares one matrix between source embedding, target embedding and
            pre-softmax projection (3.4), "target" between the last two, "none" nothing.
        norm_position: "post" as in the paper, or "pre" (norm before each sub-layer, one more
            norm at the end of each stack).
        norm_form: "variance" is (x - mean)/sqrt(variance + epsilon), "sigma" is
            (x - mean)/(sigma + epsilon).
        norm_epsilon: the epsilon of layer normalization, in either form.
        positions: "sinusoidal" interleaves sine and cosine as in 3.5, "concatenated" puts all
            sines before all cosines (tensor2tensor, OpenNMT, fairseq), "learned" is Table 3 row E.
        first_position: the position number of the first symbol.
        max_positions: rows of the table of learned positions; the other kinds need no limit.
        attention_bias: whether the projections of attention have a bias (the paper's have none).
        output_bias: whether the pre-softmax projection has a bias.
    """

    vocabulary_size: int
    target_vocabulary_size: int | None = None
    num_layers: int = 6
    model_dim: int = 512
    feed_forward_dim: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    dropout: float = 0.1
    embedding_dropout: float | None = None
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    share_embeddings: Literal["all", "target", "none"] = "all"
    norm_position: Literal["post", "pre"] = "post"
    norm_form: Literal["variance", "sigma"] = "variance"
    norm_epsilon: float = 1e-6
    positions: Literal["sinusoidal", "concatenated", "learned"] = "sinusoidal"
    first_position: int = 0
    max_positions: int = 1024
    attention_bias: bool = False
    output_bias: bool = False

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_at_least(
            1, "vocabulary_size", "target_vocabulary_size", "num_layers", "model_dim",
            "feed_forward_dim", "num_heads", "key_dim", "value_dim", "max_positions",
        )  # fmt: skip
        self._check_at_least(0, "first_position", "norm_epsilon")
        for name in ("dropout", "embedding_dropout", "attention_dropout", "feed_forward_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise InputError(f"{name} must be at least 0 and below 1, got {rate}")
        if self.model_dim % self.num_heads and (self.key_dim is None or self.value_dim is None):
            raise InputError(
                f"model_dim {self.model_dim} is not divisible by num_heads {self.num_heads}; "
                "choose num_heads that divides it, or set key_dim and value_dim"
            )
        if self.model_dim % 2 and self.positions != "learned":
            raise InputError(
                f"model_dim must be even for {self.positions} positions, got {self.model_dim}"
            )
        if self.share_embeddings == "all" and self.target_vocabulary_size is not None:
            raise InputError(
                "share_embeddings 'all' needs one vocabulary for both sides, but "
                f"target_vocabulary_size {self.target_vocabulary_size} is given; "
                "set share_embeddings to 'target' or 'none', or share the vocabulary"
            )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Returns a named configuration: "tiny", or the paper's "base" and "big" (Table 3).

        Args:
            name: one of `PRESETS`.
            **changes: fields to set otherwise; `vocabulary_size` is always needed.

        Example:
            >>> ModelConfig.preset("base", vocabulary_size=37000).model_dim
            512
        """
        if name not in PRESETS:
            raise InputError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
        return cls.from_dict(PRESETS[name] | changes)


# "tiny" is the encoder and decoder that Wu et al. 2021 trained on Multi30k.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(num_layers=4, model_dim=128, feed_forward_dim=256, num_heads=4, dropout=0.3),
    "base": dict(num_layers=6, model_dim=512, feed_forward_dim=2048, num_heads=8, dropout=0.1),
    "big": dict(num_layers=6, model_dim=1024, feed_forward_dim=4096, num_heads=16, dropout=0.3),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(JsonConfig):
    """Where sentence pairs come from and how they become symbols.

    Attributes:
        dataset: names of TensorFlow Datasets translation sets, separated by commas, such as
            wmt14_translate/de-en, or number_names/en-de, which needs no download.
        reverse: whether to swap source and target of the data sets.
        train_source, train_target: parallel text files to train on, plain or .gz; several are
            separated by commas.
        train_tsv: files with source, tab and target on each line, plain or .gz, separated by
            commas. Files, TSV files and data sets can be given together.
        mix_weights: share of the sentence pairs that each corpus gives, numbers separated by
            commas, for file pairs, TSV files and data sets in this order; None means in
            proportion to their sizes, so that an epoch has every pair once.
        dev_source, dev_target: files whose loss and BLEU are shown at each checkpoint.
        test_source, test_target: files that scripts/evaluate.py translates and scores.
        vocabulary: a SentencePiece model to use instead of learning one; the source's own where
            `target_vocabulary` is given too.
        target_vocabulary: the target's own SentencePiece model.
        vocabulary_size: symbols of each vocabulary that is learned.
        vocabulary_kind: what the symbols are: byte-pair or unigram pieces, characters, or words.
        vocabulary_normalization: "nfkc" unifies the spellings of characters, "identity" leaves
            text that is prepared already alone.
        share_vocabulary: whether one vocabulary is learned for both sides.
        max_length: pairs with more symbols on a side are left out of training.
        max_length_ratio: pairs whose longer side has more than so many times the symbols of the
            shorter one are left out of training; None means no bound.
        subword_sampling: how much the segmentation of the training text varies (subword
            regularisation, Kudo 2018): the rate of merges left out of byte-pair pieces
            (Provilkov et al. 2020), the exponent of unigram probabilities; 0 does not vary it.
        remove_bpe: whether the text is cut into pieces already, marked with "@@ ", which are
            joined before BLEU is computed.
        bleu_tokenize: sacreBLEU's tokenizer for the dev and test sets; none for text that is
            tokenized already.
        bleu_lowercase: whether BLEU ignores case.
    """

    dataset: str | None = None
    reverse: bool = False
    train_source: str | None = None
    train_target: str | None = None
    train_tsv: str | None = None
    mix_weights: str | None = None
    dev_source: str | None = None
    dev_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    vocabulary: str | None = None
    target_vocabulary: str | None = None
    vocabulary_size: int = 8000
    vocabulary_kind: Literal["bpe", "unigram", "char", "word"] = "bpe"
    vocabulary_normalization: Literal["nfkc", "identity"] = "nfkc"
    share_vocabulary: bool = True
    max_length: int = 256
    max_length_ratio: float | None = None
    subword_sampling: float = 0.0
    remove_bpe: bool = False
    bleu_tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"
    bleu_lowercase: bool = False

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_at_least(1, "vocabulary_size", "max_length", "max_length_ratio")
        if not 0 <= self.subword_sampling < 1:
            raise InputError(
                f"subword_sampling must be at least 0 and below 1, got {self.subword_sampling}"
            )
        if self.subword_sampling and self.vocabulary_kind not in ("bpe", "unigram"):
            raise InputError(
                f"subword_sampling needs vocabulary_kind bpe or unigram, got {self.vocabulary_kind}"
            )
        if len(split_list(self.train_source)) != len(split_list(self.train_target)):
            raise InputError(
                "train_source and train_target must name as many files as each other, got "
                f"{self.train_source} and {self.train_target}"
            )
        if not self.num_corpora:
            raise InputError(
                "no training data: give train_source and train_target, train_tsv or dataset"
            )
        self._check_mix_weights()
        for split in ("dev", "test"):
            names = (f"{split}_source", f"{split}_target")
            if sum(getattr(self, name) is None for name in names) == 1:
                raise InputError(f"{' and '.join(names)} go together; one of them is missing")
        if self.target_vocabulary is not None and self.vocabulary is None:
            raise InputError("target_vocabulary needs vocabulary, the source's, beside it")

    @property
    def num_corpora(self) -> int:
        """How many corpora there are to train on: pairs of files, TSV files and data sets."""
        lists = (self.train_source, self.train_tsv, self.dataset)
        return sum(len(split_list(text)) for text in lists)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """`mix_weights` as numbers."""
        if self.mix_weights is None:
            return None
        return tuple(float(weight) for weight in split_list(self.mix_weights))

    def _check_mix_weights(self) -> None:
        try:
            weights = self.weights
        except ValueError:
            weights = ()
        if weights is not None and (len(weights) != self.num_corpora or min(weights) <= 0):
            raise InputError(
                f"mix_weights must be {self.num_corpora} numbers above 0, one for each corpus, "
                f"separated by commas, got {self.mix_weights!r}"
            )


def split_list(text: str | None) -> list[str]:
    """Returns the entries of a list that is written with commas; None is the empty list."""
    return [entry.strip() for entry in text.split(",")] if text else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(JsonConfig):
    """How a model is trained (Vaswani et al. 2017, section 5).

    Attributes:
        train_steps: updates in all.
        batch_tokens: about so many source and so many target symbols a batch, padding included.
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
        checkpoint_steps: updates between two checkpoints, each with a validation.
        keep_checkpoints: newest checkpoints kept on disk.
        keep_best: checkpoints with the best dev BLEU kept beside them.
        average_last: newest checkpoints whose weights are averaged at the end (6.1).
        average_best: average so many checkpoints with the best dev BLEU in their place.
        stop_metric: what to watch to stop early: bleu, val_loss, val_perplexity or val_accuracy;
            None means not to stop early.
        stop_patience: checkpoints without a better `stop_metric` before the run stops.
        bleu_share: bound on the share of the time that goes to translating the dev set for its
            BLEU at each checkpoint; it decides how many of its sentences are taken. 0 turns it off.
        log_steps: updates between two lines of metrics.jsonl.
        precision: the Keras dtype policy; the mixed ones are for GPUs and newer CPUs.
        seed: of initial weights, dropout and the order of the data.
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
    keep_checkpoints: int = 20
    keep_best: int = 1
    average_last: int = 5
    average_best: int | None = None
    stop_metric: str | None = None
    stop_patience: int = 10
    bleu_share: float = 0.1
    log_steps: int = 100
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    seed: int = 1

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_at_least(
            1, "train_steps", "batch_tokens", "warmup_steps", "checkpoint_steps",
            "keep_checkpoints", "average_last", "average_best", "accumulation_steps",
            "max_bad_steps", "stop_patience", "log_steps",
        )  # fmt: skip
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise InputError(f"clip_norm must be above 0, got {self.clip_norm}; or leave it out")
        self._check_at_least(
            0, "label_smoothing", "learning_rate", "seed", "weight_decay", "keep_best", "bleu_share"
        )
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise InputError(f"ema_decay must be between 0 and 1, got {self.ema_decay}")
        if self.bleu_share > 1:
            raise InputError(f"bleu_share must be at most 1, got {self.bleu_share}")
        needs_bleu = self.stop_metric == "bleu" or self.average_best is not None
        if needs_bleu and self.bleu_share == 0:
            raise InputError(
                "stop_metric bleu and average_best need the dev BLEU, but bleu_share is 0; raise it"
            )
        known = ("bleu", "val_loss", "val_perplexity", "val_accuracy")
        if self.stop_metric not in (None, *known):
            raise InputError(
                f"stop_metric must be one of {', '.join(known)}, got {self.stop_metric!r}"
            )
        if self.average_best is not None and self.average_best > self.keep_best:
            raise InputError(
                f"average_best {self.average_best} is larger than keep_best {self.keep_best}; "
                "keep more of the best or average fewer"
            )
        if self.label_smoothing >= 1:
            raise InputError(f"label_smoothing must be below 1, got {self.label_smoothing}")
        if self.average_last > self.keep_checkpoints:
            raise InputError(
                f"average_last {self.average_last} is larger than keep_checkpoints "
                f"{self.keep_checkpoints}; keep more checkpoints or average fewer"
            )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Returns the training that goes with the model preset of the same name."""
        if name not in TRAINING_PRESETS:
            raise InputError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
        return cls.from_dict(TRAINING_PRESETS[name] | changes)


TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(train_steps=20_000, batch_tokens=2048, warmup_steps=1000, average_last=5),
    "base": dict(train_steps=100_000, average_last=5),
    "big": dict(train_steps=300_000, average_last=20),
}


# Phrases of a sentence, so that no request can exhaust the memory.
MOST_PHRASES = {"banned_phrases": 256, "required_phrases": 16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(JsonConfig):
    """How translations are searched for (Vaswani et al. 2017, section 6.1).

    Attributes:
        method: beam search, or sampling of each symbol from the model's distribution.
        beam_size: hypotheses kept for each sentence; 1 is greedy search. Sampling ignores it.
        length_penalty: alpha of ((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14), by which
            log-probabilities are divided; the length counts the end symbol.
        coverage_penalty: beta of the coverage penalty (Wu et al. 2016, eq. 14), by which
            translations that leave source symbols unattended lose; 0 is off.
        beam_groups: groups that the beam is divided into, each searching for itself and avoiding
            what those before it chose (Vijayakumar et al. 2018); 1 is an ordinary beam.
        diversity_penalty: what a symbol loses for each time that an earlier group chose it at
            the same step, in units of log-probability.
        num_translations: translations returned for each sentence, best first; at most
            `beam_size` of a beam.
        temperature: what logits are divided by before a symbol is sampled.
        top_k: sampled are the k most probable symbols only; 0 means all.
        top_p: sampled are the fewest symbols that have this probability together; 1 means all.
        seed: of the sampling; the same seed gives a sentence the same samples in any batch.
        max_extra_length: a translation has at most the source's length plus this many symbols.
        max_length: a translation has at most this many symbols, whatever the source; 0 sets no
            such limit.
        min_length: a translation has at least this many symbols before its end.
        max_source_length: symbols of a sentence that are read; what is beyond them is cut off, so
            that no input can exhaust the memory.
        repetition_penalty: what the logits of symbols that a translation has already are divided
            by where positive, and multiplied by where negative (Keskar et al. 2019, 4.1); 1 is off.
        no_repeat_ngram: no sequence of so many symbols occurs twice in a translation; 0 is off.
        banned_phrases: never in a translation as the vocabulary cuts them into symbols; other
            symbols may spell the same text. 256 at most.
        required_phrases: in every translation, in any order (Post and Vilar 2018). 16 at most.
    """

    method: Literal["beam", "sampling"] = "beam"
    beam_size: int = 4
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    beam_groups: int = 1
    diversity_penalty: float = 0.5
    num_translations: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_extra_length: int = 50
    max_length: int = 0
    min_length: int = 0
    max_source_length: int = 512
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    banned_phrases: tuple[str, ...] = ()
    required_phrases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_at_least(1, "beam_size", "num_translations", "max_source_length", "beam_groups")
        self._check_at_least(0, "length_penalty", "coverage_penalty", "diversity_penalty")
        self._check_at_least(0, "max_extra_length", "max_length", "min_length")
        self._check_at_least(0, "top_k", "no_repeat_ngram")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and abs(value) >= 1 << 31:
                raise InputError(f"{field.name} must be a number of 32 bits, got {value}")
        for name in ("temperature", "repetition_penalty", "top_p"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be larger than 0, got {getattr(self, name)}")
        penalties = ("length_penalty", "coverage_penalty", "diversity_penalty")
        for name in (*penalties, "temperature", "repetition_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} must be a finite number, got {getattr(self, name)}")
        if self.top_p > 1:
            raise InputError(f"top_p is a probability, at most 1, got {self.top_p}")
        if self.method == "beam" and self.num_translations > self.beam_size:
            raise InputError(
                f"num_translations {self.num_translations} is larger than beam_size "
                f"{self.beam_size}; raise beam_size or ask for fewer"
            )
        if self.beam_size % self.beam_groups:
            raise InputError(
                f"beam_groups {self.beam_groups} does not divide beam_size {self.beam_size}; "
                f"a beam_size of {self.beam_groups * 2} gives each group two hypotheses"
            )
        if 0 < self.max_length < self.min_length:
            raise InputError(
                f"min_length {self.min_length} is larger than max_length {self.max_length}"
            )
        for name in ("banned_phrases", "required_phrases"):
            phrases = getattr(self, name)
            if isinstance(phrases, str) or not all(phrase.strip() for phrase in phrases):
                raise InputError(f"{name} must be phrases, none of them blank, got {phrases!r}")
            if len(phrases) > MOST_PHRASES[name]:
                raise InputError(f"{name} may be {MOST_PHRASES[name]}, got {len(phrases)}")
            object.__setattr__(self, name, tuple(phrases))  # a list, read from JSON
