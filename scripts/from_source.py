"""Runs a command from this folder, without installing the package."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from keras_transformer.commands.main import run_script as run_script
