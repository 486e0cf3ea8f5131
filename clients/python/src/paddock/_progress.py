"""A progress bar where there is tqdm and somebody who looks."""

from __future__ import annotations

import sys
from typing import Any


class Bar:
    """A bar of tqdm's, or nothing. Unset, it shows on a terminal and in a notebook."""

    def __init__(self, what: str, total: int | None, show: bool | None = None, unit: str = "") -> None:
        self._bar: Any = None
        if show is False or (show is None and not _watched()):
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        self._bar = tqdm(desc=what, total=total, unit=unit or "it", file=sys.stderr, leave=False)

    def advance(self, **shown: Any) -> None:
        if self._bar is not None:
            if shown:
                self._bar.set_postfix(shown, refresh=False)
            self._bar.update(1)

    def grow(self, by: int) -> None:
        if self._bar is not None:
            self._bar.total = (self._bar.total or 0) + by
            self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _watched() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules
