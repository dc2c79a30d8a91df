from __future__ import annotations

from tests.support.node import node

__all__ = ["node"]
