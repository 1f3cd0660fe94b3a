"""The abstract sequence-to-sequence model, and the registry of architectures.

An architecture is a configuration class and a subclass of `Seq2SeqModel` that
`register_architecture` connects. `build_model(config)` makes the model of any configuration.

Shapes: B batch, S source length, T target length, W hypotheses of a sentence, D model dimension,
L layers, H heads, V target vocabulary.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import keras
from keras import ops
from typing_extensions import Self

from keras_transformer.config import PAD_ID, ModelConfig
from keras_transformer.config.model import add_architecture
from keras_transformer.config.registry import add_class
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.errors import InputError, check_backend
from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masks import padding_mask, predicting_mask
from keras_transformer.models.checks import check_shape
from keras_transformer.models.token_weighted import TokenWeightedModel

if TYPE_CHECKING:  # search needs TensorFlow
    from keras_transformer.search import Hypotheses


class Seq2SeqModel(TokenWeightedModel, abc.ABC):
    """Base of the models: embeddings, output projection and serialization.

    An architecture adds its layers in `__init__`, which ends with `self.build()`, builds them in
    `build` after `super().build()`, and defines `call`, `encode` and `step`. All
    sizes are in the configuration, so the weights exist from the start: `summary`, `load_weights`
    and strategies need no first batch.

    Optional methods: `attention_weights` for an architecture with attention; `attention`, as in
    `Transformer`, if its decoder attends to the source, and then `encode` keeps
    `DecodingState.coverage` on request.

    Args:
        config: the hyperparameters.
        **kwargs: of `keras.Model`.

    Attributes:
        source_embedding, target_embedding: the same layer if `share_embeddings` is "all".
        source_dropout, target_dropout: for the inputs of encoder and decoder.
        projection: a `Dense` layer without bias, or None if the target embedding projects.
        output_bias: [V], or None.
        generation: the graphs of `generate`, in a namespace, which Keras does not save.
    """

    generation: Any = None

    def __init__(self, config: ModelConfig, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # which would round token ids
        self.supports_masking = True  # see `compute_mask`
        self.config = config
        dtype = self.dtype_policy
        embedding = dict(model_dim=config.model_dim, scale=config.scale_embeddings, dtype=dtype)
        self.source_embedding = self.target_embedding = TokenEmbedding(
            config.vocabulary_size, **embedding, name="source_embedding"
        )
        if config.share_embeddings != "all":
            self.target_embedding = TokenEmbedding(
                config.target_size, **embedding, name="target_embedding"
            )
        self.source_dropout = Dropout(config.dropout, name="source_dropout", dtype=dtype)
        self.target_dropout = Dropout(config.dropout, name="target_dropout", dtype=dtype)

    def build(self, input_shape: Any = None) -> None:
        config = self.config
        self.projection = self.output_bias = None
        self.source_embedding.build()
        if self.target_embedding is not self.source_embedding:
            self.target_embedding.build()
        if config.share_embeddings == "none":
            self.projection = keras.layers.Dense(
                config.target_size, use_bias=False, name="projection", dtype=self.dtype_policy
            )
            self.projection.build((None, None, config.model_dim))
        if config.output_bias:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(config.target_size,), initializer="zeros"
            )
        self.built = True

    def _lock_state(self) -> None:
        """Keeps the model open after `build`: a subclass may add its own layers and weights."""

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; raises `InputError` if the inputs are not named "source", "target"."""
        if not isinstance(inputs, Mapping) or not {"source", "target"} <= inputs.keys():
            got = list(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise InputError(
                f'the model takes {{"source": ids [B, S], "target": ids [B, T]}}, got {got}'
            )
        for name in ("source", "target"):
            check_shape(name, inputs[name])
        return super().__call__(inputs, *args, **kwargs)

    @abc.abstractmethod
    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Returns the logits of each next target token.

        Args:
            inputs: "source" ids [B, S], and "target" ids [B, T] shifted right, which start with
                BOS. Padding is 0.
            training: whether dropout is on.

        Returns:
            Logits [B, T, V].
        """

    @abc.abstractmethod
    def encode(
        self,
        source: Tensor,
        *,
        num_hypotheses: int = 1,
        capacity: int | None = None,
        coverage: bool = False,
    ) -> DecodingState:
        """Encodes the source; see `TranslationModel.encode`."""

    @abc.abstractmethod
    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Reads one more target token of each hypothesis; see `TranslationModel.step`."""

    def generate(
        self,
        source: Any,
        *,
        method: Literal["beam", "sampling"] = "beam",
        num_translations: int = 1,
        max_length: int | None = None,
        constraints: Sequence[Any] = (),
        **options: Any,
    ) -> "Hypotheses":
        """Generates target ids from source ids, with TensorFlow; `Translator` takes text.

        The first call, and each call with constraints, traces a graph. Changed weights count.

        Args:
            source: ids [B, S] as for `fit`: each row ends with EOS, then PAD.
            method: "beam" or "sampling".
            num_translations: hypotheses of each row, N.
            max_length: the most tokens before EOS; None means 50 more than the row has.
            constraints: see `Constraint`.
            **options: of `beam_search`, such as `beam_size` and `length_penalty`, or of `sample`,
                such as `temperature` and `seed`.

        Returns:
            The hypotheses, best first: `ids` [B, N, L] without BOS, each with EOS, then PAD, and
            `scores` and `lengths` [B, N].

        Raises:
            InputError: `source` is not a matrix of ids of the vocabulary, an option is out of
                range, or Keras runs on another backend.

        Example:
            >>> best = model.generate([[7, 12, 5, 3]], beam_size=4).ids[:, 0]  # [B, L]
        """
        check_backend()
        from keras_transformer.models.generation import generate

        return generate(
            self,
            source,
            method=method,
            num_translations=num_translations,
            max_length=max_length,
            constraints=constraints,
            **options,
        )

    def attention_weights(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        """Returns the weights of each layer as its attention computes them; see `attentions`."""
        return {}

    def attentions(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the attention of all layers and heads.

        Args:
            inputs: as in `call`.

        Returns:
            float32 "encoder" [L, B, H, S, S], "decoder" [L, B, H, T, T] and "cross"
            [L, B, H, T, S]; an architecture may lack some. A row is a distribution over the
            tokens that one token reads; the rows and columns of padding are 0.
        """
        source = padding_mask(self.visible_source(inputs["source"]))
        target = padding_mask(inputs["target"])
        ends = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
        weights = {}
        for name, layers in self.attention_weights(inputs).items():
            queries, keys = ends[name]
            is_real = queries[:, None, :, None] & keys[:, None, None, :]  # [B, 1, T, S]
            weights[name] = ops.where(is_real, ops.cast(ops.stack(layers), "float32"), 0.0)
        return weights

    def visible_source(self, source: Tensor) -> Tensor:
        """Returns the source ids [B, S] with PAD for tokens that the encoder does not read."""
        return source

    def logits(self, x: Tensor, projection: Sequence[Tensor] = ()) -> Tensor:
        """Returns the logits [..., V] of the decoder's outputs x [..., D].

        Args:
            x: the outputs.
            projection: `output_projection()`, if a caller has it.
        """
        if projection:
            matrix, *biases = projection
            logits = ops.matmul(x, matrix)
            return logits + biases[0] if biases else logits
        if self.projection is None:
            logits = self.target_embedding(x, reverse=True)
        else:
            logits = self.projection(x)
        if self.output_bias is not None:
            logits = logits + ops.cast(self.output_bias, logits.dtype)
        return logits

    def output_projection(self) -> tuple[Tensor, ...]:
        """Returns the matrix [D, V] that makes logits, and their bias [V] if there is one.

        Laid out once for all steps: a product with a matrix that is transposed each time takes up
        to twice as long. Empty after `Model.quantize`: `step` calls the quantized layer.
        """
        if self.projection is None:
            matrix = self.target_embedding.projection()
        elif self.projection.quantization_mode is None:
            matrix = ops.cast(self.projection.kernel, self.compute_dtype)
        else:
            return ()
        if self.output_bias is None:
            return (matrix,)
        return matrix, ops.cast(self.output_bias, self.compute_dtype)

    def embedding_tables(self) -> list[keras.Variable]:
        """Returns the matrices whose rows are looked up by index."""
        return [self.source_embedding.table, self.target_embedding.table]

    def export(self, filepath: Any, format: str = "tf_saved_model", **options: Any) -> None:
        """Exports `call`, from ids to logits, as Keras does; `kt.export` has text and search."""
        ids = keras.InputSpec(dtype="int32", shape=(None, None))
        signature = {"source": ids, "target": ids}
        super().export(filepath, format, **{"input_signature": [signature]} | options)

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        return (*input_shape["target"], self.config.target_size)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Tensor:
        """Returns the Keras mask of the logits, bool [B, T]: where a target token is predicted.

        Keras's own metrics and losses then do not count padding.
        """
        return predicting_mask(inputs["target"])

    def get_config(self) -> dict[str, Any]:
        layers = self._flatten_layers(include_self=False)
        modes = (getattr(layer, "quantization_mode", None) for layer in layers)
        return {
            "config": self.config.to_dict(),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
            "frozen": [index for index, layer in enumerate(layers) if not layer.trainable],
            "quantization": next(filter(None, modes), None),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        values = dict(config)
        values["dtype"] = keras.saving.deserialize_keras_object(values["dtype"])
        frozen, quantization = values.pop("frozen", ()), values.pop("quantization", None)
        model = cls(ModelConfig.from_dict(values.pop("config")), **values)
        layers = model._flatten_layers(include_self=False)
        for index, layer in enumerate(layers if frozen else ()):  # a layer sets those within it
            layer.trainable = index not in frozen
        if quantization is not None:
            model.quantize(quantization)
        return model


Model = TypeVar("Model", bound=type[Seq2SeqModel])
_MODELS: dict[type[ModelConfig], type[Seq2SeqModel]] = {}


def register_architecture(config: type[ModelConfig]) -> Callable[[Model], Model]:
    """Returns a decorator that registers a model class with the class of its configuration.

    `ModelConfig`, `build_model`, runs, commands and Keras's model files then find both.

    Raises:
        InputError: another configuration has the name, or another model the configuration.

    Example:
        >>> @register_architecture(RecurrentConfig)
        ... class RecurrentModel(Seq2SeqModel): ...
    """

    def register(model: Model) -> Model:
        add_class(_MODELS, config, model, f"architecture {config.architecture!r}")
        add_architecture(config)
        return keras.saving.register_keras_serializable("keras_transformer")(model)

    return register


def build_model(config: ModelConfig, dtype: Any = None) -> Seq2SeqModel:
    """Returns a new model of the configuration's architecture.

    Args:
        config: of a registered architecture.
        dtype: name of a dtype policy, or the policy; None means Keras's default.

    Raises:
        InputError: no model is registered for the configuration.
    """
    if type(config) not in _MODELS:
        raise InputError(
            f"no model is registered for {type(config).__name__}; register one with "
            "register_architecture"
        )
    return _MODELS[type(config)](config, dtype=dtype)


# `DecodingState.coverage`, for decoders that attend to the source.


def start_coverage(source: Tensor, num_hypotheses: int) -> Tensor:
    """Returns the coverage [B, W, S] before the first step: 1 for padding."""
    padding = ops.cast(ops.equal(source, PAD_ID), "float32")[:, None]
    return ops.repeat(padding, num_hypotheses, axis=1)


def add_coverage(coverage: Tensor | None, attention: Tensor) -> Tensor | None:
    """Adds the heads' mean attention, of [B, H, W, S], to the coverage; None stays None."""
    if coverage is None:
        return None
    return coverage + ops.mean(ops.cast(attention, "float32"), axis=1)
