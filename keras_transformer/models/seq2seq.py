"""The abstract sequence-to-sequence model: what every architecture shares.

Shapes: B batch, S source length, T target length, D model dimension, V target vocabulary.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import keras
from keras import ops
from typing_extensions import Self

from keras_transformer.config import PAD_ID, ModelConfig, register_config
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.errors import InputError
from keras_transformer.layers import Dropout, TokenEmbedding
from keras_transformer.layers.masks import padding_mask
from keras_transformer.models.train_step import TokenWeightedModel

# What a model's configuration says of its layers: which are quantized, which weights are frozen.
#
# Keras stores neither for a subclassed model: its file would not load after `Model.quantize`, and
# would lose the optimizer's state where a part of the model is not trainable.

_MODES = ("int8", "int4", "float8")  # the others need data to quantize with


def layer_states(model: keras.Model) -> dict[str, Any]:
    """Returns what differs from layers as they are built, by paths below the model.

    "quantization" has the serialized quantization of each quantized layer, "frozen" the weights
    that are not trainable in a model that is.

    Raises:
        InputError: a layer's quantization cannot be restored.
    """
    weights = _weights(model) if model.trainable else {}
    frozen = [path for path, weight in weights.items() if not weight.trainable]
    states = {"quantization": _quantization_configs(model), "frozen": frozen}
    return {name: state for name, state in states.items() if state}


def restore_layer_states(model: keras.Model, states: dict[str, Any]) -> None:
    """Makes the layers of a new model those of `layer_states`, so that weights can be loaded."""
    layers = _layers(model)
    for path, config in states.get("quantization", {}).items():
        layers[path].quantize(config=keras.saving.deserialize_keras_object(config))
    weights = _weights(model)
    for path in states.get("frozen", []):
        weights[path].trainable = False


def _quantization_configs(model: keras.Model) -> dict[str, Any]:
    configs = {}
    for path, layer in _layers(model).items():
        if mode := getattr(layer, "quantization_mode", None):
            if mode not in _MODES:
                raise InputError(
                    f"a model quantized to {mode} cannot be saved; save it before `quantize`, or "
                    f"quantize it to one of {', '.join(_MODES)}"
                )
            configs[path] = keras.saving.serialize_keras_object(layer.quantization_config)
    return configs


def _layers(model: keras.Model) -> dict[str, Any]:
    layers = model._flatten_layers(include_self=False)
    return {layer.path.partition("/")[2]: layer for layer in layers if layer.path is not None}


def _weights(model: keras.Model) -> dict[str, Any]:
    return {weight.path.partition("/")[2]: weight for weight in model.weights}


class Seq2SeqModel(TokenWeightedModel, abc.ABC):
    """Base of the models: embeddings, output projection and serialization.

    An architecture adds its layers in `__init__`, which ends with `self.build()`, builds them in
    `build` after `super().build()`, and defines `call`, `encode`, `step` and `count_flops`. Its
    sizes are known from the configuration, so the weights exist from the start: `summary`,
    `load_weights` and strategies need no first batch.

    One that has attention also defines `attention_weights`; one whose decoder attends to the source
    defines `attention` besides, as `Transformer` does, and then keeps `DecodingState.coverage`
    where `encode` is asked to. One that has more to say of each token defines `token_values`, as
    `UniversalTransformer` does; the signature `attention` answers with them too.

    Args:
        config: the hyperparameters.
        **kwargs: of `keras.Model`.

    Attributes:
        source_embedding, target_embedding: the same layer where "all" embeddings are shared.
        source_dropout, target_dropout: for what enters the encoder and the decoder.
        projection: a `Dense` layer without bias, or None where the target embedding projects.
        output_bias: [V], or None.
    """

    def __init__(self, config: ModelConfig, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # token ids are not to be rounded
        self.config = config
        embedding = dict(
            model_dim=config.model_dim, scale=config.scale_embeddings, dtype=self.dtype_policy
        )
        self.source_embedding = self.target_embedding = TokenEmbedding(
            config.vocabulary_size, **embedding, name="source_embedding"
        )
        if config.share_embeddings != "all":
            self.target_embedding = TokenEmbedding(
                config.target_size, **embedding, name="target_embedding"
            )
        rate = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.source_dropout = Dropout(rate, name="source_dropout", dtype=self.dtype_policy)
        self.target_dropout = Dropout(rate, name="target_dropout", dtype=self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        config = self.config
        self.projection = None
        if config.share_embeddings == "none":
            self.projection = keras.layers.Dense(
                config.target_size, use_bias=False, name="projection", dtype=self.dtype_policy
            )
        self.source_embedding.build()
        if self.target_embedding is not self.source_embedding:
            self.target_embedding.build()
        if self.projection is not None:
            self.projection.build((None, None, config.model_dim))
        self.output_bias = None
        if config.output_bias:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(config.target_size,), initializer="zeros"
            )
        self.built = True

    def _lock_state(self) -> None:
        """Keeps the model open after `build`: a subclass may add layers and weights of its own."""

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; `InputError` where the inputs are not named "source" and "target"."""
        if not isinstance(inputs, Mapping) or not {"source", "target"} <= inputs.keys():
            got = type(inputs).__name__
            if isinstance(inputs, Mapping):
                got = f"the keys {', '.join(map(repr, inputs))}"
            raise InputError(
                'the model takes {"source": ids [B, S], "target": ids [B, T] shifted right}, got '
                f"{got}; name the two inputs in a dict"
            )
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

    @abc.abstractmethod
    def count_flops(self, source_length: Any, target_length: Any) -> Any:
        """Returns the floating-point operations of a forward pass over one sentence pair.

        Those of matrix products alone, a multiplication and an addition for each entry; padding
        does not count, what a causal mask hides does.

        Args:
            source_length: tokens with EOS; a number, NumPy array or tensor, in float64 where exact
                (arithmetic and `keras.ops` alone count).
            target_length: the same of the target.

        Returns:
            A number or an array; here those of the output projection.
        """
        return 2 * target_length * self.config.model_dim * self.config.target_size

    def attention_weights(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        """Returns the weights of each layer as its attention computes them; see `attentions`."""
        return {}

    def attentions(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the attention of all layers and heads.

        Args:
            inputs: as in `call`.

        Returns:
            float32 "encoder" [L, B, H, S, S], "decoder" [L, B, H, T, T] and "cross"
            [L, B, H, T, S], of which an architecture may lack some. A row is a distribution over
            the tokens that one token reads; the rows and columns of padding are 0.
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
        """Returns the source ids [B, S] with PAD in place of what the encoder does not read."""
        return source

    def logits(self, x: Tensor, projection: Sequence[Tensor] = ()) -> Tensor:
        """Returns the logits [..., V] of the decoder's outputs x [..., D].

        Args:
            x: the outputs.
            projection: `output_projection()`, where a caller has it, or columns of it.
        """
        if projection:
            matrix, *biases = projection
            logits = ops.matmul(x, matrix)
            return logits + biases[0] if biases else logits
        logits = (self.projection or self.target_embedding.project)(x)
        bias = self.output_bias
        return logits if bias is None else logits + ops.cast(bias, logits.dtype)

    def output_projection(self) -> tuple[Tensor, ...]:
        """Returns the matrix [D, V] that makes logits, and their bias [V] where there is one.

        Laid out once for all steps: a product with a matrix that is transposed each time takes up
        to twice as long.
        """
        if self.projection is None:
            matrix = self.target_embedding.projection()
        else:
            matrix = ops.cast(self.projection.kernel, self.compute_dtype)
        if self.output_bias is None:
            return (matrix,)
        return matrix, ops.cast(self.output_bias, self.compute_dtype)

    def embedding_tables(self) -> list[keras.Variable]:
        """Returns the matrices whose rows are looked up by index; others multiply vectors.

        Quantization scales these by the row, and others by the column.
        """
        return [self.source_embedding.table, self.target_embedding.table]

    def export(self, filepath: str, *args: Any, input_signature: Any = None, **kwargs: Any) -> None:
        """Exports `call`, logits of given targets, as `keras.Model.export` does.

        `keras_transformer.export` writes the model that translates text.

        Args:
            filepath, *args, **kwargs: of `keras.Model.export`.
            input_signature: the inputs; None means ids of any shape.
        """
        if input_signature is None:
            ids = keras.KerasTensor((None, None), "int32")
            input_signature = [{"source": ids, "target": ids}]
        super().export(filepath, *args, input_signature=input_signature, **kwargs)

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        return (*input_shape["target"], self.config.target_size)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Writes the model as `keras.Model.save` does; refuses what could not be loaded."""
        self.get_config()  # Keras would ask for it after it has opened the file
        super().save(filepath, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
            "layers": layer_states(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        values = dict(config)
        values["dtype"] = keras.saving.deserialize_keras_object(values["dtype"])
        is_trainable = values.pop("trainable", True)
        layers = values.pop("layers", {})
        model = cls(ModelConfig.from_dict(values.pop("config")), **values)
        restore_layer_states(model, layers)
        if not is_trainable:
            model.trainable = False  # and all its layers
        return model


# What several architectures share.
#
# Shapes: B batch, S source length, T target length, W hypotheses a sentence, H heads.


def start_coverage(source: Tensor, num_hypotheses: int) -> Tensor:
    """Returns `DecodingState.coverage` [B, W, S] before the first step."""
    padding = ops.cast(ops.equal(source, PAD_ID), "float32")[:, None]
    batch, _, length = ops.shape(padding)
    return ops.broadcast_to(padding, (batch, num_hypotheses, length))


def add_coverage(coverage: Tensor | None, attention: Tensor) -> Tensor | None:
    """Returns `DecodingState.coverage` after a step, which the mean of the heads is added to.

    Args:
        coverage: [B, W, S] before the step; None where search does not need it.
        attention: of the step's tokens, [B, H, W, S].
    """
    if coverage is None:
        return None
    return coverage + ops.mean(ops.cast(attention, "float32"), axis=1)


# Maps each configuration class to its model class.

Model = TypeVar("Model", bound=type[Seq2SeqModel])
_MODELS: dict[type[ModelConfig], type[Seq2SeqModel]] = {}


def register_architecture(config: type[ModelConfig]) -> Callable[[Model], Model]:
    """Returns a decorator that registers a model class for a configuration class.

    Runs, commands and Keras's model files then find both by `config.architecture` and the class's
    name.

    Raises:
        InputError: another configuration has the name of the architecture or of a preset.

    Example:
        >>> @register_architecture(RecurrentConfig)
        ... class RecurrentModel(Seq2SeqModel): ...
    """
    register_config(config)

    def register(model: Model) -> Model:
        _MODELS[config] = keras.saving.register_keras_serializable("keras_transformer")(model)
        return model

    return register


def build_model(config: ModelConfig, dtype: Any = None) -> Seq2SeqModel:
    """Returns a new model of the configuration's architecture.

    Args:
        config: of a registered architecture.
        dtype: name of a dtype policy, or the policy; None means Keras's default.

    Raises:
        InputError: no model is registered for the configuration.
    """
    model = _MODELS.get(type(config))
    if model is None:
        raise InputError(
            f"no model is registered for {type(config).__name__}; register one with "
            "register_architecture"
        )
    return model(config, dtype=dtype)
