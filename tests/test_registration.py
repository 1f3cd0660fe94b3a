"""Files of Keras load after `import keras_transformer`, in whatever order packages are imported."""

import keras
import numpy as np
import pytest

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, Transformer, TransformerConfig
from keras_transformer.layers import TokenEmbedding

SOURCE = np.array([[5, 6, 3, 0], [8, 3, 0, 0]])
TARGET = np.array([[2, 5, 6, 0], [2, 8, 0, 0]])  # the labels, here the source, shifted right


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds model.keras, compiled, and layers.keras, with layers of the package alone."""
    folder = tmp_path_factory.mktemp("saved")
    sizes = dict(num_layers=1, model_dim=8, feed_forward_dim=8, num_heads=2)
    model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=9, **sizes))
    model.compile("adam", SmoothedCrossEntropy(0.1), metrics=[TokenAccuracy()])
    model.fit({"source": SOURCE, "target": TARGET}, SOURCE, verbose=0)
    model.save(folder / "model.keras")
    ids = keras.Input((None,), dtype="int32")
    keras.Model(ids, TokenEmbedding(9, 4)(ids)).save(folder / "layers.keras")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import keras, keras_transformer",
        "import importlib.util, keras_transformer.config, threading\n"
        "importlib.util.find_spec('keras')\n"
        "threads = [threading.Thread(target=__import__, args=[name])\n"
        "           for name in ('keras', 'keras_transformer.models', 'keras')]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        "import keras",
    ],
    ids=["keras first", "a search for keras, then threads"],
)
def test_files_load_in_any_order_of_imports(folder, run_python, imports):
    program = f"""
{imports}
for name in ("model", "layers"):
    print(type(keras.models.load_model(f"{folder}/{{name}}.keras")).__name__)
"""
    assert run_python("-c", program, KERAS_BACKEND="jax") == "Transformer\nFunctional\n"


def test_keras_works_where_the_models_do_not(run_python):
    """The client alone is installed without safetensors."""
    program = """
import sys
sys.modules["safetensors"] = None
import keras_transformer, keras
print(keras.__name__, type(keras.__loader__).__name__)
"""
    assert run_python("-c", program, KERAS_BACKEND="jax") == "keras SourceFileLoader\n"
