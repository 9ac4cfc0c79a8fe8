"""Leave caches out of pickles and deep copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar


class WithoutCaches:
    """Leave the caches of an object out of its pickles and deep copies. The copy gets empty caches.

    The caches can't be copied, because their keys are identities of objects, or their values can't be pickled (weak references,
    CUDA graphs). A shallow copy shares the caches.

        class Decoder(WithoutCaches, caches={"_prepared": dict}): ...  # names of attributes, and what makes empty ones
    """

    _caches: ClassVar[dict[str, Callable[[], Any]]] = {}

    def __init_subclass__(cls, caches: Mapping[str, Callable[[], Any]] | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._caches = {**cls._caches, **(caches or {})}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._caches}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, **{name: make() for name, make in self._caches.items()})

    def __copy__(self) -> Any:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other
