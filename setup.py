"""Builds the package from pyproject.toml: pip install .

With KERAS_TRANSFORMER_CLIENT=1 in the environment, what is built requires no TensorFlow: only what
the client of a model server needs. Extras can add to requirements, not remove them.
"""

import os
from typing import Any

import setuptools


class _ClientOnly(setuptools.Distribution):
    """The package, which requires what its extra "client" lists and nothing else."""

    def parse_config_files(self, *args: Any, **options: Any) -> None:
        super().parse_config_files(*args, **options)
        self.install_requires = self.metadata.install_requires = self.extras_require["client"]
        self.metadata.version += "+client"  # as other packages name a build, such as 2.8.0+cpu


is_client = bool(os.environ.get("KERAS_TRANSFORMER_CLIENT"))
setuptools.setup(**({"distclass": _ClientOnly} if is_client else {}))
