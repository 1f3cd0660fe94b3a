"""Trains a Transformer with `model.fit` to copy digits, and decodes with beam search.

    python examples/copy_digits.py

prints the share of new random sequences that it copies without an error.
"""

import keras
import numpy as np

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, Transformer, TransformerConfig

BOS, EOS, FIRST = 2, 3, 4  # ids 0 and 1 are PAD and UNK; digits start at 4
LENGTH = 6


def make_data(num_rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the inputs of the model and its labels: random digits, then EOS."""
    labels = np.random.default_rng(seed).integers(FIRST, FIRST + 10, (num_rows, LENGTH))
    labels[:, -1] = EOS
    shifted = np.concatenate([np.full((num_rows, 1), BOS), labels[:, :-1]], axis=1)
    return {"source": labels, "target": shifted}, labels


def main() -> None:
    keras.utils.set_random_seed(1)
    config = TransformerConfig.preset("tiny", vocabulary_size=14, num_layers=1, dropout=0.0)
    model = Transformer(config)
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=SmoothedCrossEntropy(0.1),
        metrics=[TokenAccuracy()],
    )
    inputs, labels = make_data(4000, seed=1)
    model.fit(inputs, labels, batch_size=50, epochs=3, verbose=2)

    inputs, labels = make_data(100, seed=2)
    best = (
        model.generate(inputs["source"], max_length=LENGTH + 4).ids[:, 0, :LENGTH].numpy()
    )  # [100, LENGTH]
    print(f"copied without an error: {np.all(best == labels, axis=1).mean():.2f}")


if __name__ == "__main__":
    main()
