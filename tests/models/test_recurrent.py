"""What only the recurrent model has; its arithmetic is in test_architectures.py."""

from keras_transformer.config import RecurrentConfig
from keras_transformer.models import build_model


def test_flops_are_counted_by_hand():
    # U = 6, D = 4, A = 5, V = 13; 3 source and 2 target tokens.
    encoder = 3 * (2 * 24 * (4 + 6) + 12 * 5)  # both ways, and keys
    bridges = 2 * 12 * 6
    decoder = 2 * (24 * (4 + 6) + 6 * 5 + 18 * 4)  # LSTM, query, output
    pairs = 2 * 3 * (5 + 12)  # a score and a context
    expected = 2 * (encoder + bridges + decoder + pairs + 2 * 4 * 13)
    config = RecurrentConfig(vocabulary_size=13, model_dim=4, hidden_dim=6, attention_dim=5)
    assert build_model(config).count_flops(3, 2) == expected
