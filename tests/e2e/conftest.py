"""What the tests of the whole path share: the support modules on the path, and how a training is started."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
