"""The abstract sequence-to-sequence model, and the registry of architectures.

An architecture is a configuration class and a subclass of `Seq2SeqModel` that
`register_architecture` connects. `build_model(config)` makes the model of any configuration.

Shapes: B batch, S source length, T target length, W hypotheses of a sentence, D model dimension,
L layers, H heads, V target vocabulary.
"""

import abc
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import keras
import numpy as np
from keras import ops
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from typing_extensions import Self

from keras_transformer.config import PAD_ID, ModelConfig
from keras_transformer.config.model import add_architecture
from keras_transformer.config.registry import add_class
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.errors import InputError, check_backend
from keras_transformer.files import write_atomically
from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.file_state import (
    Dense,
    layer_states,
    restore_layer_states,
    sublayers,
    weights_by_path,
)
from keras_transformer.layers.masks import padding_mask, predicting_mask
from keras_transformer.models.train_step import TokenWeightedModel
from keras_transformer.objectives import check_batch, check_padded

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
    `DecodingState.coverage` on request; `token_values`, as in `UniversalTransformer`, for other
    values of each token in an export's signature `attention`.

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
        rate = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.source_dropout = Dropout(rate, name="source_dropout", dtype=dtype)
        self.target_dropout = Dropout(rate, name="target_dropout", dtype=dtype)

    def build(self, input_shape: Any = None) -> None:
        config = self.config
        self.projection = self.output_bias = None
        self.source_embedding.build()
        if self.target_embedding is not self.source_embedding:
            self.target_embedding.build()
        if config.share_embeddings == "none":
            self.projection = Dense(
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

    def enable_lora(self, rank: int, lora_alpha: float | None = None) -> None:
        """Adds trainable matrices of a low rank to each `Dense` layer (Hu et al. 2022).

        All other weights are frozen. Files of the model keep the matrices.

        Args:
            rank: of the matrices, r.
            lora_alpha: their factor is `lora_alpha / rank`; None means `rank`.

        Raises:
            InputError: the model has such matrices already, or no `Dense` layer.
        """
        if "lora" in layer_states(self):
            raise InputError("the model has LoRA matrices already; enable_lora adds them once")
        options = {"rank": rank, "lora_alpha": lora_alpha}
        layers = sublayers(self).items()
        dense = [path for path, layer in layers if isinstance(layer, keras.layers.Dense)]
        if not dense:
            raise InputError(f"{type(self).__name__} has no Dense layers for LoRA to adapt")
        self._add_lora(dict.fromkeys(dense, options))

    def save_lora_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Writes only the matrices of `enable_lora`, a few MB, as a safetensors file.

        Raises:
            InputError: the model has none.
        """
        if not (layers := layer_states(self).get("lora")):
            raise InputError("the model has no LoRA weights; call enable_lora first")
        weights = {
            path: np.asarray(ops.convert_to_numpy(weight))
            for path, weight in weights_by_path(self).items()
            if path.endswith(("/lora_kernel_a", "/lora_kernel_b"))
        }
        write_atomically(filepath, save(weights, metadata={"layers": json.dumps(layers)}))

    def load_lora_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Reads a file of `save_lora_weights` onto the model that the matrices were trained for.

        A model without `enable_lora` gets matrices of the ranks in the file.

        Raises:
            InputError: the file is not one of these, or has other layers or sizes.
        """
        try:
            with safe_open(filepath, framework="numpy") as file:
                layers = json.loads(file.metadata()["layers"])
                weights = {path: file.get_tensor(path) for path in file.keys()}  # noqa: SIM118
            present = layer_states(self).get("lora")
            _check_lora_sizes(sublayers(self), layers, weights)
            if present is None:
                self._add_lora(layers)
            elif present != layers:
                raise ValueError("layers, ranks or alphas differ from those of the model")
            for path, weight in weights_by_path(self).items():
                if path in weights:
                    weight.assign(weights[path])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"cannot load the LoRA weights in {filepath} ({type(error).__name__}: {error}); "
                "give a file of save_lora_weights, and a model with the same layers"
            ) from error

    def _add_lora(self, layers: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds matrices to layers, given by path, and freezes all other weights."""
        known = sublayers(self)
        chosen = {known[path]: options for path, options in layers.items()}
        for layer in self._flatten_layers():  # setting the model's flag may leave theirs
            layer.trainable = True
        for weight in self.weights:
            weight.trainable = False
        for layer, options in chosen.items():
            layer.enable_lora(**options)

    def extended(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> Self:
        """Returns a copy with more tokens, whose ids follow the old ones.

        The rows of a new token are the means of the rows of the old tokens that spell it: its
        embeddings, its column of the projection and its output bias. Logits of old tokens stay
        as they are; their probabilities shrink by the share that softmax gives to new ones.

        Args:
            source, target: the old ids that spell each new token of a vocabulary, see
                `cut_new_tokens`; if the model has one vocabulary for both, `source` counts.

        Raises:
            InputError: the model has LoRA matrices or quantized layers.
        """
        if {"lora", "quantization"} & layer_states(self).keys():
            raise InputError(
                "a model with LoRA matrices or quantized layers cannot get more tokens; add them "
                "before `enable_lora` or `quantize`"
            )
        config = self.config
        sizes = {"vocabulary_size": config.vocabulary_size + len(source)}
        if config.target_vocabulary_size is None:
            target = source
        else:
            sizes["target_vocabulary_size"] = config.target_vocabulary_size + len(target)
        model = type(self)(config.replace(**sizes), dtype=self.dtype_policy)
        for old, new in zip(self.weights, model.weights, strict=True):
            new.trainable = old.trainable
            values = np.asarray(ops.convert_to_numpy(old))
            spelled = source if old is self.source_embedding.table else target
            for axis, (size, new_size) in enumerate(zip(old.shape, new.shape, strict=True)):
                if size != new_size:
                    means = [np.mean(np.take(values, ids, axis), axis) for ids in spelled]
                    values = np.concatenate([values, np.stack(means, axis)], axis)
            new.assign(values)
        return model

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; raises `InputError` if the inputs are not named "source", "target"."""
        if not isinstance(inputs, Mapping) or not {"source", "target"} <= inputs.keys():
            got = type(inputs).__name__
            if isinstance(inputs, Mapping):
                got = f"the keys {', '.join(map(repr, inputs))}"
            raise InputError(
                'the model takes {"source": ids [B, S], "target": ids [B, T] shifted right}, got '
                f"{got}; name the two inputs in a dict"
            )
        for name, ids in inputs.items():  # a subclass may have others, of any shape
            (check_batch if name in ("source", "target") else check_padded)(name, ids)
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

    def fit(self, *args: Any, callbacks: Any = None, **kwargs: Any) -> Any:
        """Trains as `keras.Model.fit` does.

        Args:
            *args, **kwargs: of `keras.Model.fit`.
            callbacks: as there; those that add to the logs, such as `TranslationMetrics`, run
                before those that read them.
        """
        if callbacks is not None and not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = _writers_of_logs_first(keras.tree.flatten(callbacks))
        if callbacks is not None:
            kwargs["callbacks"] = callbacks
        return super().fit(*args, **kwargs)

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

    def count_flops(self, source_length: Any, target_length: Any) -> Any:
        """Returns the floating-point operations of a forward pass over one sentence pair.

        None, as here, if the architecture does not count them: its runs then report no FLOPs.
        Counts matrix products only, a multiplication and an addition for each entry, entries that a
        causal mask hides included, padding not.

        Args:
            source_length: tokens with EOS; a number, NumPy array or tensor (use arithmetic and
                `keras.ops` only), in float64 for an exact result.
            target_length: the same of the target.

        Returns:
            A number or an array, or None.
        """
        return None

    def _projection_flops(self, target_length: Any) -> Any:
        """Returns the operations of the output projection, as `count_flops` does."""
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
        logits = (self.projection or self.target_embedding.project)(x)
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

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        return (*input_shape["target"], self.config.target_size)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Tensor:
        """Returns the Keras mask of the logits, bool [B, T]: where a target token is predicted.

        Keras's own metrics and losses then do not count padding.
        """
        return predicting_mask(inputs["target"])

    def export(self, filepath: str, *args: Any, input_signature: Any = None, **kwargs: Any) -> None:
        """Exports `call`, logits of given targets, as `keras.Model.export` does.

        `keras_transformer.export` writes the model that translates text.

        Args:
            filepath, *args, **kwargs: of `keras.Model.export`.
            input_signature: the inputs; None means ids of any shape.
        """
        if input_signature is None:
            names, shape = ("source", "target"), (None, None)
            ids = {name: keras.KerasTensor(shape, "int32", name=name) for name in names}
            input_signature = [ids]
        super().export(filepath, *args, input_signature=input_signature, **kwargs)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Writes the model as `keras.Model.save` does; rejects one that could not be loaded."""
        self.get_config()  # raises before Keras opens the file
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
        states = values.pop("layers", {})
        model = cls(ModelConfig.from_dict(values.pop("config")), **values)
        restore_layer_states(model, states)
        if not is_trainable:
            model.trainable = False  # and all its layers
        return model


Model = TypeVar("Model", bound=type[Seq2SeqModel])
_MODELS: dict[type[ModelConfig], type[Seq2SeqModel]] = {}


def register_architecture(config: type[ModelConfig]) -> Callable[[Model], Model]:
    """Returns a decorator that registers a model class with the class of its configuration.

    `ModelConfig`, `build_model`, runs, commands and Keras's model files then find both.

    Raises:
        InputError: another configuration has the name or a preset, or another model has the
            configuration.

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


def _writers_of_logs_first(callbacks: Sequence[Any]) -> list[Any]:
    """Moves callbacks with `adds_to_logs` forward, but not before a swap of the weights."""
    ordered: list[Any] = []
    for callback in callbacks:
        place = len(ordered)
        while getattr(callback, "adds_to_logs", False) and place:
            before = ordered[place - 1]
            is_swap = isinstance(before, keras.callbacks.SwapEMAWeights)
            if is_swap or getattr(before, "adds_to_logs", False):
                break
            place -= 1
        ordered.insert(place, callback)
    return ordered


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


def _check_lora_sizes(
    layers: Mapping[str, Any], states: Mapping[str, Any], weights: Mapping[str, Any]
) -> None:
    for path, options in states.items():
        rows, columns = layers[path].kernel.shape
        for name, shape in (("a", (rows, options["rank"])), ("b", (options["rank"], columns))):
            actual = weights[f"{path}/lora_kernel_{name}"].shape
            if actual != shape:
                raise ValueError(f"lora_kernel_{name} of {path} is {actual}, not {shape}")
