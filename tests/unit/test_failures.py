"""Failures on the wire: what is rebuilt, what is not, and that neither side ever breaks on them."""

from __future__ import annotations

import builtins
import dataclasses
import json
import socket
import sys
import threading
import types
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight_sync.errors import CodecError, OwnerFailedError, StoreError
from singleflight_sync.failures import describe, rebuild

FLIGHT = "owner web1/4242, fencing token 17"


class PlainError(Exception):
    """Takes any arguments."""


class RequiredError(Exception):
    """Pickles well, cannot be unpickled: needs an argument that `args` does not hold."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class FormattingError(Exception):
    """Makes its text from its argument, so that rebuilding it from its text would format it twice."""

    def __init__(self, code: object) -> None:
        super().__init__(f"api says {code}")


class LockedError(Exception):
    """Holds what cannot travel."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    code: int


class Outer:
    class NestedError(Exception):
        pass


class OtherError(Exception):
    def __new__(cls, *_args: object) -> Any:
        return PlainError("another")


class QuietError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class HostileError(Exception):
    """Raises wherever it is touched."""

    def __str__(self) -> NoReturn:
        raise SystemExit

    __repr__ = __str__

    def __reduce__(self) -> NoReturn:
        raise SystemExit

    @property
    def args(self) -> NoReturn:  # type: ignore[override]
        raise SystemExit

    @property
    def __notes__(self) -> NoReturn:
        raise SystemExit


class NoisyMeta(type):
    looked_up: list[str] = []  # noqa: RUF012 - a record of the test

    def __getattribute__(cls, name: str) -> Any:
        if not name.startswith("__"):
            NoisyMeta.looked_up.append(name)
        return super().__getattribute__(name)


class Noisy(metaclass=NoisyMeta):
    InnerError = PlainError


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc  # noqa: TRY301 - to give it a traceback
    except BaseException as caught:  # noqa: BLE001 - whatever it is
        return caught


def sent(exc: BaseException, key: str = "report:42") -> Exception:
    return rebuild(describe(raised(exc), flight=FLIGHT), key)


def wire(**changes: Any) -> bytes:
    facts = json.loads(describe(raised(ValueError("a")), flight=FLIGHT))
    return json.dumps({**facts, **changes}).encode()


# What is rebuilt


@pytest.mark.parametrize(
    "exc",
    [
        *(ValueError("bad"), ValueError(), KeyError("k"), KeyError(1), ZeroDivisionError("x"), LookupError("a", 1)),
        *(PlainError(None, *[True], 1, 2.5, "a"), PlainError((1, [2, ("a",)])), PlainError([]), PlainError("é\u4e00")),
        *(LockedError("held"), FrozenError(5), Outer.NestedError("deep"), StoreError("redis is gone")),
        FileNotFoundError(2, "no such file", "/tmp/x"),  # noqa: S108 - a name, no file
    ],
    ids=repr,
)
def test_an_exception_of_plain_arguments_comes_back_as_itself(exc: Exception) -> None:
    copy = sent(exc)

    assert type(copy) is type(exc)
    assert (copy.args, str(copy), repr(copy)) == (exc.args, str(exc), repr(exc))


def test_arguments_that_only_the_exception_knows_are_kept() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads('{"a": ')
    copy = sent(caught.value)

    assert isinstance(copy, json.JSONDecodeError)
    assert (copy.msg, copy.doc, copy.pos) == (caught.value.msg, caught.value.doc, caught.value.pos)
    os_error = sent(FileNotFoundError(2, "no such file", "name"))
    assert isinstance(os_error, FileNotFoundError)
    assert os_error.filename == "name"


def test_an_owner_failure_of_a_nested_flight_keeps_what_it_tells() -> None:
    copy = sent(OwnerFailedError("the owner failed", "app.Error", "Traceback ..."))

    assert isinstance(copy, OwnerFailedError)
    assert (str(copy), copy.type_name, copy.traceback_text) == ("the owner failed", "app.Error", "Traceback ...")


def test_an_exception_without_a_text_comes_back_without_one() -> None:
    copy = sent(QuietError("a"))

    assert (type(copy), copy.args) == (QuietError, ("a",))


def test_every_reader_gets_an_object_of_its_own() -> None:
    data = describe(raised(PlainError(["a"])), flight=FLIGHT)
    first, second = rebuild(data, "k"), rebuild(data, "k")

    assert first is not second
    assert first.args[0] is not second.args[0]
    assert first.__notes__ is not second.__notes__  # type: ignore[attr-defined]


def test_the_owner_keeps_its_exception_as_it_was() -> None:
    exc = raised(ValueError("bad"))
    describe(exc, flight=FLIGHT)

    assert not hasattr(exc, "__notes__")


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple), max_leaves=5
)


@given(st.lists(PLAIN, max_size=3))
def test_any_plain_arguments_come_back_as_they_were(args: list[Any]) -> None:
    copy = sent(PlainError(*args))

    assert type(copy) is PlainError
    assert repr(copy.args) == repr(tuple(args))


# What is not rebuilt


def local_error() -> Exception:
    class LocalError(Exception):
        pass

    return LocalError("from inside")


def gone_error() -> Exception:
    kind: type[Exception] = type("GoneError", (Exception,), {"__module__": "nowhere.to_be_found"})
    return kind("from afar")


NOT_REBUILT = {
    "a required keyword": RequiredError("bad", code=5),
    "a text made from the argument": FormattingError(5),
    "a local class": local_error(),
    "a class of a module not imported here": gone_error(),
    "an object": PlainError(object()),
    "a socket": PlainError("a", socket),
    "bytes": PlainError(b"a"),
    "a dict": PlainError({"a": 1}),
    "a subclass of str": PlainError(type("Text", (str,), {})("a")),
    "not a number": PlainError(float("nan")),
    "infinity": PlainError(float("inf")),
    "a number that python does not print": PlainError(10**5000),
    "too much": PlainError("x" * 20_000),
    "a long message": ValueError("x" * 5_000_000),
    "two surrogates that JSON would join": PlainError("\ud83d\ude00"),
    "an exit": SystemExit(3),
    "a keyboard interrupt": KeyboardInterrupt("k"),
    "decoding": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
}


@pytest.mark.parametrize("case", NOT_REBUILT)
def test_any_other_exception_comes_as_an_owner_failure_that_names_type_and_key(case: str) -> None:
    exc = NOT_REBUILT[case]
    copy = sent(exc)

    assert type(copy) is OwnerFailedError
    assert copy.type_name.rpartition(".")[2] == type(exc).__qualname__.rpartition(".")[2]
    assert copy.type_name in str(copy)
    assert "'report:42'" in str(copy)
    assert copy.traceback_text.startswith("Traceback (most recent call last):\n")
    assert "in raised" in copy.traceback_text


def test_an_owner_failure_tells_the_text_of_the_exception_and_what_to_do() -> None:
    message = str(sent(RequiredError("disk is full", code=5)))

    assert "disk is full" in message
    assert "plain data" in message


def test_a_class_whose_constructor_makes_another_is_not_rebuilt() -> None:
    data = wire(module=__name__, name="OtherError", args=["a"], message="another")

    assert type(rebuild(data, "k")) is OwnerFailedError


@pytest.mark.parametrize("raises", [ValueError, SystemExit, GeneratorExit, type("Odd", (BaseException,), {})])
def test_whatever_a_constructor_raises_the_reader_gets_an_owner_failure(
    raises: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = describe(raised(PlainError("a")), flight=FLIGHT)

    def explode(_self: object, *_args: object) -> None:
        raise raises

    monkeypatch.setattr(PlainError, "__init__", explode)

    assert type(rebuild(data, "k")) is OwnerFailedError


if sys.version_info >= (3, 11):  # no group before

    def test_a_group_is_not_rebuilt_and_named() -> None:
        group = vars(builtins)["ExceptionGroup"]
        copy = sent(group("many", [ValueError("a")]))

        assert type(copy) is OwnerFailedError
        assert copy.type_name == "ExceptionGroup"

    def test_a_group_with_a_plain_constructor_is_not_rebuilt_either(monkeypatch: pytest.MonkeyPatch) -> None:
        group = vars(builtins)["ExceptionGroup"]
        own = type("OwnGroup", (group,), {"__new__": lambda kind, text: group.__new__(kind, text, [ValueError()])})
        monkeypatch.setattr(sys.modules[__name__], "OwnGroup", own, raising=False)
        data = wire(module=__name__, name="OwnGroup", args=["many"], message=str(own("many")))

        assert type(rebuild(data, "k")) is OwnerFailedError


def test_causes_are_told_as_text() -> None:
    cause = ValueError("the cause")
    cause.__context__ = KeyError("the context")
    exc = local_error()
    exc.__cause__ = cause

    message = str(sent(exc))

    assert "caused by ValueError: the cause" in message
    assert "while handling KeyError: 'the context'" in message


def test_a_context_that_is_suppressed_is_not_told() -> None:
    exc = local_error()
    exc.__context__ = KeyError("secret")
    exc.__suppress_context__ = True

    assert "secret" not in str(sent(exc))


def test_a_chain_without_end_is_cut() -> None:
    first, second = local_error(), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    assert str(sent(first)).count("caused by") == 1


def test_a_codec_error_travels_without_its_value() -> None:
    class Trap:
        def __reduce__(self) -> NoReturn:
            pytest.fail("the value was pickled")

    copy = sent(CodecError("a set at `$`", Trap()))

    assert type(copy) is CodecError
    assert (str(copy), copy.value) == ("a set at `$`", None)


# Notes


@pytest.mark.parametrize("exc", [ValueError("a"), FrozenError(5), local_error()], ids=["plain", "frozen", "local"])
def test_a_note_names_key_owner_and_flight_and_where_it_was_raised(exc: Exception) -> None:
    (note,) = sent(exc).__notes__  # type: ignore[attr-defined]

    assert "'report:42'" in note
    assert FLIGHT in note
    assert "in raised" in note


def test_notes_of_the_owner_come_first() -> None:
    exc = ValueError("a")
    exc.__notes__ = ["while building", 5]  # type: ignore[attr-defined]
    notes = sent(exc).__notes__  # type: ignore[attr-defined]

    assert (len(notes), notes[0]) == (2, "while building")


# Nothing breaks either side


@pytest.mark.parametrize("touched", ["", "args", "__str__"])
def test_a_hostile_exception_is_described_all_the_same(touched: str) -> None:
    copy = sent(HostileError("a", touched))

    assert type(copy) is OwnerFailedError
    assert copy.type_name == f"{__name__}.HostileError"


def test_a_large_exception_stays_small_on_the_wire() -> None:
    exc = ValueError("x" * 5_000_000)
    exc.__notes__ = ["y" * 1_000_000] * 1000  # type: ignore[attr-defined]
    exc.__cause__ = ValueError("z" * 5_000_000)

    data = describe(raised(exc), flight=FLIGHT)

    assert len(data) < 100_000
    assert "[...]" in str(rebuild(data, "k"))


def test_a_deep_traceback_keeps_its_end() -> None:
    def dive(depth: int) -> None:
        if depth:
            swim(depth - 1)
        raise LookupError("at the bottom")

    def swim(depth: int) -> None:
        dive(depth)

    with pytest.raises(LookupError) as caught:
        dive(200)
    copy = rebuild(describe(caught.value, flight=FLIGHT), "k")

    assert 'raise LookupError("at the bottom")' in copy.__notes__[0]  # type: ignore[attr-defined]
    assert len(copy.__notes__[0]) < 11_000  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"x",
            b"{",
            b"[]",
            b"5",
            b"null",
            b"\xff",
            b"{}",
            b"[" * 100_000,
            describe(ValueError(), flight="")[:-3],
        ),
        *(b'{"args": []}', b'{"name": 5, "module": {}}', b'{"name": "ValueError"}'),
    ],
    ids=lambda data: repr(data[:24]),
)
def test_foreign_bytes_are_an_owner_failure(data: bytes) -> None:
    copy = rebuild(data, "report:42")

    assert type(copy) is OwnerFailedError
    assert "'report:42'" in str(copy)


@given(st.binary())
def test_any_bytes_are_an_owner_failure(data: bytes) -> None:
    assert type(rebuild(data, "k")) is OwnerFailedError


JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2))


@given(
    st.dictionaries(
        st.sampled_from(["v", "module", "name", "message", "args", "traceback", "notes", "chain", "flight"]), JSON
    )
)
def test_facts_of_the_wrong_type_never_break_the_reader(changes: dict[str, Any]) -> None:
    assert isinstance(rebuild(wire(**changes), "k"), Exception)


def test_facts_of_a_later_release_are_ignored() -> None:
    assert type(rebuild(wire(v=2, colour="red"), "k")) is ValueError


# Nobody runs code here by what is planted there


def test_no_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    rebuild(wire(module="colorsys", name="Error", args=[]), "k")

    assert "colorsys" not in sys.modules


def test_no_attribute_of_a_module_is_made_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    module = types.ModuleType("lazy")
    module.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", module)

    assert type(rebuild(wire(module="lazy", name="Error"), "k")) is OwnerFailedError
    assert asked == []


def test_no_metaclass_is_asked_for_a_nested_class() -> None:
    NoisyMeta.looked_up.clear()
    rebuild(wire(module=__name__, name="Noisy.InnerError", message="a", args=["a"]), "k")

    assert NoisyMeta.looked_up == []


@pytest.mark.parametrize(
    ("module", "name", "args"),
    [
        *(("builtins", "eval", ["1 + 1"]), ("builtins", "exec", [""]), ("os", "system", ["true"])),
        *(("builtins", "SystemExit", [1]), ("builtins", "KeyboardInterrupt", []), ("builtins", "BaseException", [])),
        *(("builtins", "object", []), ("builtins", "Exception.__init__", []), ("subprocess", "Popen", ["true"])),
        *(
            (__name__, "raised", []),
            (__name__, "", []),
            ("", "", []),
            (__name__, "local_error.<locals>.LocalError", []),
        ),
        *(("builtins", "ExceptionGroup", ["a", {"list": []}]), ("builtins", "ValueError", [{"dict": []}])),
        *(("builtins", "ValueError", [{"list": 5}]), ("builtins", "ValueError", "abc"), ("builtins", "ValueError", {})),
    ],
    ids=repr,
)
def test_only_exception_classes_with_plain_arguments_are_called(module: str, name: str, args: Any) -> None:
    assert type(rebuild(wire(module=module, name=name, args=args), "k")) is OwnerFailedError


def test_a_planted_pickle_is_not_unpickled() -> None:
    assert type(rebuild(b"cos\nsystem\n(S'exit 1'\ntR.", "k")) is OwnerFailedError
