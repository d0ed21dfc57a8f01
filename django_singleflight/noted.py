"""Mappings that tell of each look: at one of their names, or at all of them."""

# ruff: noqa: D102 - the methods do what those of a dict do

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http.request import HttpHeaders
from django.utils.functional import cached_property

from django_singleflight.keys import COOKIE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class NotedDict(dict[Any, Any]):
    """A copy of a dict that tells of each look, and keeps what is written into it for the original."""

    def __init__(
        self, original: dict[Any, Any], look_up: Callable[[Any], None], look_at_all: Callable[[], None]
    ) -> None:
        super().__init__(original)
        self._look_up = look_up
        self._look_at_all = look_at_all
        self._dirty = False

    def write_back(self, original: dict[Any, Any]) -> None:
        """Do to the original what was done to this copy."""
        if self._dirty:
            now = dict(dict.items(self))
            original.clear()
            original.update(now)

    # -- looks at one

    def __getitem__(self, name: Any) -> Any:
        self._look_up(name)
        return super().__getitem__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        self._look_up(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._look_up(name)
        return super().__contains__(name)

    # -- looks at all

    def __iter__(self) -> Iterator[Any]:
        self._look_at_all()
        return super().__iter__()

    def __reversed__(self) -> Iterator[Any]:
        self._look_at_all()
        return super().__reversed__()

    def __len__(self) -> int:
        self._look_at_all()
        return super().__len__()

    def keys(self) -> Any:
        self._look_at_all()
        return super().keys()

    def values(self) -> Any:
        self._look_at_all()
        return super().values()

    def items(self) -> Any:
        self._look_at_all()
        return super().items()

    def copy(self) -> dict[Any, Any]:
        self._look_at_all()
        return dict(super().items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    __reduce_ex__ = lambda self, _protocol: self.__reduce__()  # noqa: E731 - the one that ``copy`` asks first
    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.copy())

    def __eq__(self, other: object) -> bool:
        return self.copy() == other

    def __ne__(self, other: object) -> bool:
        return self.copy() != other

    __hash__ = None  # as a dict

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    # -- writes

    def __setitem__(self, name: Any, value: Any) -> None:
        self._dirty = True
        super().__setitem__(name, value)

    def __delitem__(self, name: Any) -> None:
        self._look_up(name)
        self._dirty = True
        super().__delitem__(name)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._dirty = True
        super().update(*args, **kwargs)

    def setdefault(self, name: Any, default: Any = None) -> Any:
        self._look_up(name)
        self._dirty = True
        return super().setdefault(name, default)

    def pop(self, name: Any, *default: Any) -> Any:
        self._look_up(name)
        self._dirty = True
        return super().pop(name, *default)

    def popitem(self) -> tuple[Any, Any]:
        self._look_at_all()
        self._dirty = True
        return super().popitem()

    def clear(self) -> None:
        self._dirty = True
        super().clear()


class NotedEnviron(NotedDict):
    """``request.META``. The cookies are not even in it before they are asked for."""

    def __init__(
        self, original: dict[Any, Any], look_up: Callable[[Any], None], look_at_all: Callable[[], None]
    ) -> None:
        def asked(name: Any) -> None:
            look_up(name)
            if name == COOKIE:
                self._reveal()

        def asked_all() -> None:
            look_at_all()
            self._reveal()

        super().__init__(original, asked, asked_all)
        self._hidden = dict.pop(self, COOKIE, None)

    def write_back(self, original: dict[Any, Any]) -> None:
        self._reveal()
        super().write_back(original)

    def __setitem__(self, name: Any, value: Any) -> None:
        self._reveal()
        super().__setitem__(name, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._reveal()
        super().update(*args, **kwargs)

    def clear(self) -> None:
        self._reveal()
        super().clear()

    def _reveal(self) -> None:
        if self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            dict.__setitem__(self, COOKIE, hidden)


class NotedHeaders(HttpHeaders):
    """``request.headers``, made when it is first asked."""

    def __init__(
        self, environ: dict[str, Any], look_up: Callable[[str], None], look_at_all: Callable[[], None]
    ) -> None:
        self._environ = dict(environ)
        self._look_up = look_up
        self._look_at_all = look_at_all

    @cached_property
    def _store(self) -> Any:
        return HttpHeaders(self._environ)._store  # noqa: SLF001 - of the base class

    def __getitem__(self, name: str) -> Any:
        self._look_up(self.to_wsgi_name(name))
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self._look_at_all()
        return iter(super().__iter__())

    def __len__(self) -> int:
        self._look_at_all()
        return len(self._store)

    def __repr__(self) -> str:
        self._look_at_all()
        return str(super().__repr__())
