"""Puts the encoder's layers into a Keras model of another kind: a classifier of sequences.

    python examples/classify_sequences.py

The model learns whether token 5 occurs more often than token 6.
"""

import keras
import numpy as np

from keras_transformer.layers import Encoder, PositionalEncoding, TokenEmbedding

PAD, VOCABULARY, DIM, LONGEST = 0, 10, 32, 12


def make_data(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids [num_rows, LONGEST] padded with 0, and the class of each row."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(4, VOCABULARY, (num_rows, LONGEST))
    lengths = generator.integers(4, LONGEST + 1, (num_rows, 1))
    ids = np.where(np.arange(LONGEST) < lengths, ids, PAD)
    return ids, (np.sum(ids == 5, axis=1) > np.sum(ids == 6, axis=1)).astype("int32")


def make_model() -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    is_token = keras.ops.not_equal(ids, PAD)
    x = PositionalEncoding(DIM)(TokenEmbedding(VOCABULARY, DIM)(ids))
    encoder = Encoder(num_layers=2, num_heads=4, key_dim=8, value_dim=8, feed_forward_dim=64)
    x = encoder(x, mask=is_token)  # [B, S, DIM]
    x = keras.layers.GlobalAveragePooling1D()(x, mask=is_token)
    return keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(x))


def main() -> None:
    keras.utils.set_random_seed(1)
    model = make_model()
    model.compile(keras.optimizers.Adam(2e-3), loss="binary_crossentropy", metrics=["accuracy"])
    model.fit(*make_data(4000, seed=1), batch_size=50, epochs=3, verbose=2)
    _, accuracy = model.evaluate(*make_data(500, seed=2), verbose=0)
    print(f"accuracy: {accuracy:.2f}")


if __name__ == "__main__":
    main()
