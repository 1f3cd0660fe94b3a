"""The Transformer as an ordinary Keras model (Vaswani et al. 2017, section 3).

`call` trains it, `encode` and `step` decode with it, `attention` shows what it looked at; all run
the same layers.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, D model dimension,
V target vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID, ModelConfig
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.layers import Decoder, Dropout, Encoder, PositionalEncoding, TokenEmbedding
from keras_transformer.layers.attention import KeysValues
from keras_transformer.layers.masks import ancestor_bias, causal_bias, padding_bias
from keras_transformer.models.quantization import quantization_configs, restore_quantization
from keras_transformer.models.training_step import TokenWeightedModel


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(TokenWeightedModel):
    """Encoder and decoder for sequence transduction.

    Args:
        config: the hyperparameters.

    Example:
        >>> model = Transformer(ModelConfig.preset("tiny", vocabulary_size=100))
        >>> ids = np.array([[5, 6, 7, 3]])
        >>> model({"source": ids, "target": ids}).shape
        TensorShape([1, 4, 100])
    """

    def __init__(self, config: ModelConfig, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # ids are no floats to be rounded
        self.config = config
        target_size = config.target_size
        dtype = self.dtype_policy

        self.source_embedding = TokenEmbedding(
            config.vocabulary_size, config.model_dim, name="source_embedding", dtype=dtype
        )
        self.target_embedding = self.source_embedding
        if config.share_embeddings != "all":
            self.target_embedding = TokenEmbedding(
                target_size, config.model_dim, name="target_embedding", dtype=dtype
            )
        self.positions = PositionalEncoding(
            config.model_dim,
            config.positions,
            config.first_position,
            config.max_positions,
            name="positions",
            dtype=dtype,
        )
        embedding_dropout = config.embedding_dropout
        if embedding_dropout is None:
            embedding_dropout = config.dropout
        self.source_dropout = Dropout(embedding_dropout, name="source_dropout", dtype=dtype)
        self.target_dropout = Dropout(embedding_dropout, name="target_dropout", dtype=dtype)
        options = _layer_options(config)
        self.encoder = Encoder(**options, name="encoder", dtype=dtype)
        self.decoder = Decoder(**options, name="decoder", dtype=dtype)
        self.projection = None
        if config.share_embeddings == "none":
            self.projection = keras.layers.Dense(
                target_size, use_bias=False, name="projection", dtype=dtype
            )
        # Every size is known from the config, so the weights exist from the start: summary(),
        # load_weights() and strategies need no first batch.
        self.build()

    def _lock_state(self) -> None:
        """Keeps the model open after `build`: a subclass may add layers and weights of its own."""

    def build(self, input_shape: Any = None) -> None:
        config = self.config
        hidden = (None, None, config.model_dim)
        self.source_embedding.build()
        if self.target_embedding is not self.source_embedding:
            self.target_embedding.build()
        self.positions.build()
        self.encoder.build(hidden)
        self.decoder.build(hidden)
        if self.projection is not None:
            self.projection.build(hidden)
        self.output_bias = None
        if config.output_bias:
            self.output_bias = self.add_weight(
                name="output_bias",
                shape=(config.target_size,),
                initializer="zeros",
            )
        self.built = True

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Returns the logits of each next target token.

        Args:
            inputs: "source" ids [B, S], and "target" ids [B, T] shifted right, which start with
                BOS. Padding is 0.
            training: whether dropout is on.

        Returns:
            Logits [B, T, V].
        """
        x, memory, bias, memory_bias = self._decoder_inputs(inputs, training)
        return self._logits(self.decoder(x, memory, bias, memory_bias, training=training))

    def attention(self, inputs: dict[str, Tensor], head: int | None = None) -> Tensor:
        """Returns the attention that the target's tokens pay to the source's in the last layer.

        Args:
            inputs: as in `call`.
            head: number of a head; None means the mean of all.

        Returns:
            float32 [B, T, S]; each row is a distribution over the real source tokens.
        """
        x, memory, bias, memory_bias = self._decoder_inputs(inputs, training=False)
        weights = ops.cast(self.decoder.attention(x, memory, bias, memory_bias), "float32")
        return ops.mean(weights, axis=1) if head is None else weights[:, head]

    def encode(
        self,
        source: Tensor,
        *,
        num_hypotheses: int = 1,
        capacity: int | None = None,
        coverage: bool = False,
    ) -> DecodingState:
        """Reads the source ids [B, S] once, for any number of calls of `step`.

        Args:
            source: padded with 0.
            num_hypotheses: W, hypotheses of a sentence that `step` will be asked for at once.
            capacity: the most tokens that `step` will be asked to read; None for a state that
                grows. With a capacity all shapes stay the same, as XLA wants it.
            coverage: whether to keep account of the attention to the source.

        Returns:
            The state before the first target token.
        """
        bias = padding_bias(source)
        batch, length = ops.shape(source)
        memory = self.decoder.project_memory(self._encode(source, bias, training=False))
        # Not the bias: TensorFlow's oneDNN remapper, fusing the sum of a product and a tensor
        # that comes from outside of a loop, takes the wrong output of that tensor's Switch, and
        # the whole search then gives empty tensors. A bias made within the loop is safe.
        covered = None
        if coverage:
            padding = ops.cast(ops.equal(source, PAD_ID), "float32")[:, None]
            covered = ops.broadcast_to(padding, (batch, num_hypotheses, length))
        return DecodingState(
            # Laid out once for all steps: a product with a matrix that is transposed each time
            # takes up to twice as long.
            shared=self._projection(),
            context={"memory": memory, "source": source},
            kv_cache=self.decoder.empty_kv_cache(batch, (capacity or 0) * num_hypotheses),
            coverage=covered,
        )

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Reads one more target token of each hypothesis.

        Args:
            ids: [B, W], the newest tokens; BOS at first. W is static.
            state: from `encode` or the previous `step`. A search whose hypotheses branch, or
                whose state has a capacity, sets its `time` and `ancestors`.

        Returns:
            Logits [B, W, V] of the next tokens, and the next state.
        """
        num_hypotheses = ids.shape[1]
        time, ancestors = state.time, state.ancestors
        if ancestors is None:
            num_slots = ops.shape(state.kv_cache[0].keys)[2]
            time = ops.convert_to_tensor(num_slots // num_hypotheses, "int32")
            places = ops.arange(num_hypotheses, dtype="int32")[:, None]
            ancestors = ops.broadcast_to(places, (ops.shape(ids)[0], num_hypotheses, time + 1))
        # Rows [B * W, D]: products of two matrices are quicker than those of larger tensors.
        x = self.target_embedding(ops.reshape(ids, (-1,))) + self.positions(
            ops.convert_to_tensor(time, "int32")
        )
        x, kv_cache, attention = self.decoder.step(
            x,
            state.context["memory"],
            padding_bias(state.context["source"]),
            state.kv_cache,
            time,
            ancestor_bias(ancestors, num_hypotheses),
        )
        coverage = state.coverage
        if coverage is not None:
            coverage = coverage + ops.mean(ops.cast(attention, "float32"), axis=1)
        logits = self._add_bias(ops.matmul(x, state.shared))
        logits = ops.reshape(logits, (-1, num_hypotheses, logits.shape[-1]))
        return logits, state._replace(kv_cache=kv_cache, coverage=coverage)

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

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Writes the model as `keras.Model.save` does; `InputError` where it could not be loaded."""
        self.get_config()  # Keras would ask for it after it has opened the file
        super().save(filepath, *args, **kwargs)

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        return (*input_shape["target"], self.config.target_size)

    def get_config(self) -> dict[str, Any]:
        config = {
            "config": self.config.to_dict(),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }
        quantized = quantization_configs(self)
        return config | {"quantization": quantized} if quantized else config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Transformer":
        values = dict(config)
        values["dtype"] = keras.saving.deserialize_keras_object(values["dtype"])
        is_frozen = not values.pop("trainable", True)
        quantized = values.pop("quantization", {})
        model = cls(ModelConfig.from_dict(values.pop("config")), **values)
        restore_quantization(model, quantized)
        if is_frozen:
            model.trainable = False  # and all its layers
        return model

    def _encode(self, source: Tensor, bias: Tensor, training: bool | None) -> Tensor:
        x = self.source_embedding(source) + self.positions(ops.arange(ops.shape(source)[1]))
        x = self.source_dropout(x, training=training)
        return self.encoder(x, bias, training=training)

    def _decoder_inputs(
        self, inputs: dict[str, Tensor], training: bool | None
    ) -> tuple[Tensor, list[KeysValues], Tensor, Tensor]:
        """Returns the target's vectors, the memory, and the biases for both attentions."""
        source, target = inputs["source"], inputs["target"]
        memory_bias = padding_bias(source)
        memory = self.decoder.project_memory(self._encode(source, memory_bias, training))
        x = self.target_embedding(target)
        length = ops.shape(target)[1]
        x = self.target_dropout(x + self.positions(ops.arange(length)), training=training)
        # Padding follows the real tokens, so the causal bias alone hides it from them.
        return x, memory, causal_bias(length), memory_bias

    def _logits(self, x: Tensor) -> Tensor:
        project = self.target_embedding.project if self.projection is None else self.projection
        return self._add_bias(project(x))

    def _projection(self) -> Tensor:
        if self.projection is None:
            return self.target_embedding.projection()
        return ops.cast(self.projection.kernel, self.compute_dtype)

    def _add_bias(self, logits: Tensor) -> Tensor:
        if self.output_bias is None:
            return logits
        return logits + ops.cast(self.output_bias, logits.dtype)


def _layer_options(config: ModelConfig) -> dict[str, Any]:
    head_dim = config.model_dim // config.num_heads
    return {
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "key_dim": config.key_dim or head_dim,
        "value_dim": config.value_dim or head_dim,
        "feed_forward_dim": config.feed_forward_dim,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "feed_forward_dropout": config.feed_forward_dropout,
        "attention_bias": config.attention_bias,
        "norm_position": config.norm_position,
        "norm_form": config.norm_form,
        "norm_epsilon": config.norm_epsilon,
    }
