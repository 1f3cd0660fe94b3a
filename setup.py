"""Builds the package from pyproject.toml: pip install .

KERAS_TRANSFORMER_CLIENT=1 pip install . does so without TensorFlow: what is installed beside it is
what the client of a model server needs over REST.
"""

import os
from typing import Any

import setuptools


class _ClientOnly(setuptools.Distribution):
    """The package with the dependencies of its extra "client" alone."""

    def parse_config_files(self, *args: Any, **options: Any) -> None:
        super().parse_config_files(*args, **options)
        self.install_requires = self.extras_require["client"]
        self.metadata.version += "+client"


if os.environ.get("KERAS_TRANSFORMER_CLIENT"):
    setuptools.setup(distclass=_ClientOnly)
else:
    setuptools.setup()
