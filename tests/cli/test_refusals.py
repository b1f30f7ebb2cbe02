"""Whatever can't be carried out is refused with exit code 2 and one line, before anything is done."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests_cli import Call

from trioserve.testing.checkpoints import TinyLlama, write_tiny_gguf
