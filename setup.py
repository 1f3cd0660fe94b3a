"""Installs the package keras_transformer: pip install ."""

import pathlib
import re

from setuptools import find_packages, setup

_HERE = pathlib.Path(__file__).parent
_VERSION = re.search(
    r'__version__ = "(.+)"', (_HERE / "keras_transformer/__init__.py").read_text(encoding="utf-8")
).group(1)

setup(
    name="keras_transformer",
    version=_VERSION,
    description='The Transformer of "Attention Is All You Need" for Keras, with SavedModel export',
    long_description=(_HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["keras_transformer*"]),
    package_data={"keras_transformer": ["py.typed", "explorer/assets/*"]},
    entry_points={"console_scripts": ["keras-transformer = keras_transformer.commands.main:main"]},
    python_requires=">=3.10,<3.14",
    install_requires=[
        "absl-py",
        # No upper bound: tests/test_keras_internals.py tells whether a version will do.
        "keras>=3.10",
        "ml_dtypes",
        "numpy",
        "protobuf>=5",
        "pyyaml",
        "rapidfuzz",
        "sacrebleu>=2.4",
        "safetensors>=0.5",
        # 0.2.1 crashes on blank text.
        "sentencepiece>=0.2.2",
        # The text ops of one TensorFlow minor version load in no other: tensorflow-text pins
        # the TensorFlow that it was built for. Its 2.21.0 does not import.
        "tensorflow-text>=2.20,!=2.21.0",
        "tensorflow>=2.20",
        "typing-extensions",
        "urllib3>=2.2",
    ],
    extras_require={
        "datasets": [
            "importlib_resources",  # tensorflow-datasets imports it without declaring it
            "num2words",
            "tensorflow-datasets>=4.9.7",
        ],
        "serving": ["grpcio", "tensorflow-serving-api>=2.20"],
        "tensorboard": ["tensorboard"],
        "beam": ["apache-beam"],
        "ctranslate2": ["ctranslate2>=4.6.3"],
        "jax": ["jax"],
        "plot": ["matplotlib"],
        "test": [
            "keras_transformer[datasets,serving,tensorboard]",
            "ctranslate2>=4.6.3",
            "jax",
            "matplotlib",
            "mypy",
            "playwright",
            "pytest",
            "pytest-xdist",
            "ruff",
        ],
        # What scripts/test.sh --slow needs besides: large, so that the default tests do without.
        "test-backends": ["apache-beam", "torch"],
    },
)
