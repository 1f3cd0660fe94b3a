"""Lets tests import the modules beside them."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent))
