"""The torch these tests run with, known without importing it: (2, 13)."""

import importlib.metadata

TORCH = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
