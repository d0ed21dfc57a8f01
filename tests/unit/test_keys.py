"""Keys: what may be one, its names in Redis, keys of calls."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import functools
import itertools
import math
import string
import subprocess
import sys
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight_sync.errors import ConfigurationError
from singleflight_sync.keys import Namespace, check_key, check_namespace, key_from_template, key_of_call

if TYPE_CHECKING:
    from pathlib import Path

ANY_KEY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)

# What may be a key, and a namespace


@pytest.mark.parametrize("key", ["a", "report:42", "a b", "{a}", "é\u4e00", "\x00", "\n", "x" * 10_000])
def test_any_encodable_text_is_a_key(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", [b"report", None, 42, 1.5, ["a"], ("a",), object()])
def test_what_is_no_text_is_a_type_error_that_shows_the_remedy(key: object) -> None:
    remedy = "decode it" if isinstance(key, bytes) else "such as 'report:42'"

    for check in (check_key, Namespace("ns").names):
        with pytest.raises(TypeError, match=f"a key must be a str, not {type(key).__name__}: .*{remedy}"):
            check(key)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["", "\ud800", "a\udfff"])
def test_text_that_cannot_be_a_key_is_a_configuration_error(key: str) -> None:
    for check in (check_key, Namespace("ns").names):
        with pytest.raises(ConfigurationError, match="key"):
            check(key)


class Shouting(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("other")


def test_a_subclass_of_str_counts_by_its_content() -> None:
    names = Namespace("ns").names("other"), Namespace("ns").names(Shouting("other"))

    assert type(check_key(Shouting("other"))) is str
    assert names[0] == names[1]


def test_a_subclass_of_str_is_not_mistaken_for_another_key_that_it_claims_to_equal() -> None:
    namespace = Namespace("ns")
    namespace.names("other")

    assert namespace.names(Shouting("mine")).tag == "mine"


@pytest.mark.parametrize("namespace", ["ai:flight", "a b", "é"])
def test_a_namespace_is_any_text_without_braces(namespace: str) -> None:
    assert check_namespace(namespace) == namespace


@pytest.mark.parametrize("namespace", ["", "a{b", "a}b", "a\nb", "a\x00", "a\x7f", "\ud800", b"ai", None, 5])
def test_what_cannot_be_a_namespace_is_refused(namespace: object) -> None:
    for make in (check_namespace, Namespace):
        with pytest.raises(ConfigurationError, match="such as 'ai:flight'"):
            make(namespace)  # type: ignore[arg-type]


# Names in Redis


def test_a_plain_key_stands_literally_between_the_braces() -> None:
    names = Namespace("ai:flight").names("report:42")

    assert tuple(names) == (
        "report:42",
        "report:42",
        b"ai:flight:result:{report:42}",
        b"ai:flight:meta:{report:42}",
        b"ai:flight:stream:{report:42}",
    )


def test_the_names_without_a_key_have_no_braces() -> None:
    namespace = Namespace("ai:flight")

    assert (namespace.owner_seq, namespace.live) == (b"ai:flight:owner-seq", b"ai:flight:live")


def test_the_meta_name_is_found_from_a_tag() -> None:
    namespace = Namespace("ai:flight")

    for key in ("report:42", "a b", "x" * 10_000):
        names = namespace.names(key)
        assert namespace.meta(names.tag) == names.meta


@pytest.mark.parametrize("key", ["a b", "{a}", "}", "é", "a\n", "\x00", "x" * 201])
def test_any_other_key_is_digested(key: str) -> None:
    tag = Namespace("ns").names(key).tag

    assert tag.startswith("sha256 ")
    assert set(tag[7:]) <= set(string.hexdigits)
    assert len(tag) == 7 + 64


@pytest.mark.parametrize("key", ["x" * 200, "!~|z", "sha256", "[a]", "a:b/c?d=e&f"])
def test_printable_ascii_of_up_to_200_characters_is_plain(key: str) -> None:
    assert Namespace("ns").names(key).tag == key


def test_no_plain_key_is_the_tag_of_another_key() -> None:
    namespace = Namespace("ns")
    tag = namespace.names("a b").tag

    assert namespace.names(tag).tag != tag


@given(ANY_KEY, ANY_KEY)
def test_two_keys_share_a_name_only_if_they_are_the_same(first: str, second: str) -> None:
    namespace = Namespace("ns")
    one, other = namespace.names(first), namespace.names(second)

    for name, other_name in zip(one[1:], other[1:], strict=True):
        assert (name == other_name) == (first == second)


@given(ANY_KEY)
def test_every_name_has_exactly_one_pair_of_braces(key: str) -> None:
    names = Namespace("ns").names(key)

    for name in (names.result, names.meta, names.stream):
        assert name.count(b"{") == name.count(b"}") == 1
        assert name.endswith(b"{" + names.tag.encode() + b"}")


def test_long_keys_that_differ_in_the_last_byte_have_different_names() -> None:
    namespace = Namespace("ns")

    assert namespace.names("x" * 10_000 + "a") != namespace.names("x" * 10_000 + "b")


def test_names_are_remembered_but_not_without_bound() -> None:
    namespace = Namespace("ns")
    assert namespace.names("a") is namespace.names("a")

    for number in range(3000):
        namespace.names(f"key:{number}")
    assert namespace._cached.cache_info().currsize <= 1024


# Keys of calls


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    ONE = 1


class Word(str, enum.Enum):
    RED = "red"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


Point = namedtuple("Point", "x y")  # noqa: PYI024 - an old-style one


def report(a: Any, b: Any = 2, *rest: Any, c: Any = 3, **more: Any) -> None: ...


def simple(a: Any, b: Any = 2) -> None: ...


def key(*args: Any, **kwargs: Any) -> str:
    return key_of_call(report)(args, kwargs)


PARIS = ZoneInfo("Europe/Paris")
BERLIN = ZoneInfo("Europe/Berlin")
MOMENT = dt.datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - a naive one

DIFFERENT = [
    *(None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 10**5000, 10**5000 + 1),
    *(
        "",
        "1",
        "None",
        "True",
        "a",
        "a'",
        'a"',
        "a\\",
        "\\udc80",
        "\udc80",
        "\udc81",
        "?",
        "a, b",
        "b=1",
        "é",
        "\x00",
        "\n",
        "\\n",
    ),
    *(b"", b"1", b"a", b"a'", b"\xff"),
    *((), (1,), (1, 2), ((1,), 2), (1, (2,)), ("1, 2",), ("a", 1)),
    *([], [1], [1, 2], [[1], 2], ["1, 2"]),
    *({}, {1: 2}, {"1": 2}, {1: "2"}, {"a": 1}, {"a": {"b": 1}}, {("a",): 1}, {"a: 1": 2}),
    *(set(), {1}, {1, 2}, {"1, 2"}, frozenset(), frozenset({1}), frozenset({1, 2})),
    *(dt.date(2026, 1, 2), dt.datetime(2026, 1, 2), "2026-01-02", dt.time(1, 2), dt.timedelta(1), dt.timedelta(0, 1)),  # noqa: DTZ001
    *(MOMENT, MOMENT.replace(fold=1), MOMENT.replace(tzinfo=dt.timezone.utc), MOMENT.replace(microsecond=1)),
    *(MOMENT.replace(tzinfo=PARIS), MOMENT.replace(tzinfo=BERLIN), MOMENT.replace(tzinfo=PARIS, fold=1)),
    *(dt.time(1, 2, fold=1), dt.time(1, 2, tzinfo=dt.timezone.utc)),
    *(
        decimal.Decimal(1),
        decimal.Decimal("1.0"),
        decimal.Decimal("-0"),
        decimal.Decimal("NaN"),
        decimal.Decimal("sNaN"),
    ),
    *(uuid.UUID(int=1), uuid.UUID(int=2), str(uuid.UUID(int=1))),
    *(Colour.RED, Word.RED, Size.ONE, Access.READ, Access.READ | Access.WRITE, Access(0)),
]


@pytest.mark.parametrize("make", [report, simple])
def test_different_arguments_make_different_keys(make: Callable[..., Any]) -> None:
    keys = [key_of_call(make)((value,), {}) for value in DIFFERENT]

    assert len(set(keys)) == len(DIFFERENT)


def test_no_key_of_two_arguments_is_the_key_of_two_others() -> None:
    pairs = list(itertools.product(DIFFERENT[:40], repeat=2))
    keys = {key_of_call(simple)(pair, {}) for pair in pairs}

    assert len(keys) == len(pairs)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (key(("a", 1)), key(a=1)),
        (key("x", a_="b=1"), key("x", **{"a_=b": "1"})),
        (key(1, **{"b=1": 2}), key(1, 1, x=2)),
        (key(1, 2, 3), key(1, 2, (3,))),
        (key(1, 2, 3), key(1, 2, c=3)),
        (key(1, x=1), key(1, rest=1)),
        (key(1, 2), key(2, 1)),
        (key([1, True]), key([1, 1])),
    ],
)
def test_calls_that_look_alike_make_different_keys(first: str, second: str) -> None:
    assert first != second


def test_a_default_an_argument_by_position_and_one_by_name_make_one_key() -> None:
    expected = key(1, 2, c=3)

    assert {key(1), key(a=1), key(1, b=2), key(b=2, a=1), key(1, 2), key(c=3, a=1)} == {expected}


def test_the_quick_way_and_the_general_way_of_binding_agree() -> None:
    make = key_of_call(simple)

    assert {make((1,), {}), make((), {"a": 1}), make((1, 2), {}), make((1,), {"b": 2}), make((), {"b": 2, "a": 1})} == {
        f"{__name__}:simple(a=1, b=2)"
    }


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"a": 1}), ((1,), {"z": 1}), ((), {"b": 1})]
)
def test_a_call_that_python_would_refuse_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="argument"):
        key_of_call(simple)(args, kwargs)


def test_the_order_of_keywords_of_a_dict_and_of_a_set_does_not_count() -> None:
    assert key(1, x=1, y=2) == key(1, y=2, x=1)
    assert key({"x": 1, "y": 2}) == key({"y": 2, "x": 1})
    assert key({0, 8}) == key({8, 0})  # in a set these two collide, and keep the order in which they came


def test_a_key_of_a_call_is_readable() -> None:
    assert key_of_call(simple)((42, "pdf"), {}) == f'{__name__}:simple(a=42, b="pdf")'


def test_equal_values_make_equal_keys() -> None:
    for value in DIFFERENT:
        assert key(value) == key(value)


def test_the_case_of_a_decimal_does_not_depend_on_the_context() -> None:
    with decimal.localcontext() as context:
        context.capitals = 0
        lower = key(decimal.Decimal("1E+9"))

    assert lower == key(decimal.Decimal("1E+9"))


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(st.characters()), st.integers(), st.booleans()), inner, max_size=3),
    ),
    max_leaves=6,
)


def same(first: Any, second: Any) -> bool:
    """Tell apart what `==` does not: types, the sign of zero; and take two NaN as one."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return repr(first) == repr(second)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        typed = {(type(key), key): value for key, value in second.items()}
        return len(first) == len(second) and all(
            (type(key), key) in typed and same(value, typed[type(key), key]) for key, value in first.items()
        )
    return bool(first == second)


@given(PLAIN, PLAIN)
def test_any_two_values_share_a_key_only_if_they_are_the_same(first: object, second: object) -> None:
    assert (key(first) == key(second)) == same(first, second)


@given(PLAIN)
def test_any_key_of_a_call_can_be_encoded(value: object) -> None:
    check_key(key(value))


@given(
    st.lists(PLAIN, max_size=3),
    st.dictionaries(st.text(st.characters()), PLAIN, max_size=2),
    st.lists(PLAIN, max_size=3),
)
def test_spreading_arguments_differently_makes_different_keys(
    rest: list[Any], more: dict[str, Any], other: list[Any]
) -> None:
    assert (key(1, 2, *rest, x=more) == key(1, 2, *other, x=more)) == same(rest, other)


@pytest.mark.parametrize(
    "value",
    [
        *(object(), report, type, 1j, bytearray(b"a"), range(3), iter([])),
        *(Point(1, 2), OrderedDict(a=1), Shouting("a"), functools.partial(report)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_any_other_type_is_refused_naming_the_parameter_and_key(value: object) -> None:
    for nested in (value, [value], {"a": (1, value)}, {"a": {"b": value}}):
        with pytest.raises(TypeError, match=rf"argument 'b' of .*report holds a {type(value).__qualname__}, .*key="):
            key(1, b=nested)


def test_a_method_is_refused_naming_self() -> None:
    class Service:
        def report(self, a: int) -> None: ...

    with pytest.raises(TypeError, match=r"argument 'self' .*Service.*key="):
        key_of_call(Service.report)((Service(), 1), {})


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(TypeError, match=r"argument 'a' .*too deeply"):
        key(value)


def test_a_web_request_is_refused_naming_the_decorator_for_views() -> None:
    class HttpRequest:
        pass

    HttpRequest.__module__ = "django.http.request"

    class WSGIRequest(HttpRequest):
        pass

    with pytest.raises(TypeError, match=r"argument 'a' .*django_singleflight\.single_flight"):
        key(WSGIRequest())


class Outer:
    def report(self) -> None: ...

    @staticmethod
    def simple(a: Any, b: Any = 2) -> None: ...


def test_functions_of_one_name_are_told_apart_by_module_and_qualified_name() -> None:
    def twin(a: Any) -> None: ...

    twin.__qualname__, twin.__module__ = "simple", "other.module"
    keys = {key_of_call(one)((1,), {}) for one in (simple, Outer.simple, twin)}

    assert len(keys) == 3


def test_the_seam_between_module_and_name_is_marked() -> None:
    def first() -> None: ...
    def second() -> None: ...

    first.__module__, first.__qualname__ = "a.b", "c"
    second.__module__, second.__qualname__ = "a", "b.c"

    assert key_of_call(first)((), {}) != key_of_call(second)((), {})


@pytest.mark.parametrize("function", [lambda: 1, functools.partial(report, 1), Outer().report, Outer.simple.__get__(1)])
def test_a_function_without_a_name_of_its_own_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="give key="):
        key_of_call(function)


@pytest.mark.parametrize("function", [dict.update, getattr])
def test_a_function_without_a_signature_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="give key="):
        key_of_call(function)


def test_a_wrapped_function_is_bound_like_the_one_inside() -> None:
    @functools.wraps(simple)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert key_of_call(wrapper)((1,), {}) == key_of_call(wrapper)((), {"a": 1}) == key_of_call(simple)((1,), {})


SCRIPT = """
import sys
from singleflight_sync.keys import key_of_call
def report(a): ...
key = key_of_call(report)((1,), {})
if __name__ == "__main__":
    print(key)
"""


SPAWNING_SCRIPT = """
import multiprocessing
from singleflight_sync.keys import key_of_call
def report(a): ...
def key():
    return key_of_call(report)((1,), {})
if __name__ == "__main__":
    print(key())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(key))
"""


def run_script(path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=path, timeout=50
    )
    return done.stdout.strip()


def test_two_scripts_do_not_share_keys_though_both_run_as_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(SCRIPT)

    first, again, second = (run_script(tmp_path, name) for name in ("one.py", "one.py", "two.py"))

    assert first == again != second


def test_a_module_run_as_a_program_shares_keys_with_the_imported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    (tmp_path / "tool.py").write_text(SCRIPT)

    assert run_script(tmp_path, "-m", "tool") == run_script(tmp_path, "-c", "import tool; print(tool.key)")


def test_a_process_that_multiprocessing_spawned_shares_keys_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    (tmp_path / "parent.py").write_text(SPAWNING_SCRIPT)

    parent, child_key = run_script(tmp_path, "parent.py").splitlines()

    assert parent == child_key


# Keys from a template


def test_a_template_is_filled_with_the_arguments_by_name() -> None:
    make = key_from_template(simple, "report:{a}:{b:03d}:{{x}}")

    assert make((42,), {}) == make((), {"a": 42, "b": 2}) == "report:42:002:{x}"


def test_a_template_without_fields_is_one_key_for_all_calls() -> None:
    assert key_from_template(simple, "report")((1,), {}) == "report"


def test_a_template_does_not_tell_a_number_from_its_text() -> None:
    make = key_from_template(simple, "report:{a}")

    assert make((1,), {}) == make(("1",), {})


@pytest.mark.parametrize("template", ["{c}", "{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:{b}}", "{ a }"])
def test_a_template_may_use_plain_parameters_only(template: str) -> None:
    with pytest.raises(ConfigurationError, match="key"):
        key_from_template(simple, template)


def test_the_names_that_a_template_may_use_are_told() -> None:
    with pytest.raises(ConfigurationError, match=r"\{c\}.*\(a, b\)"):
        key_from_template(simple, "report:{c}")


@pytest.mark.parametrize("template", ["{a", "a}", "{a!}"])
def test_a_broken_template_is_a_configuration_error(template: str) -> None:
    with pytest.raises(ConfigurationError, match="key"):
        key_from_template(simple, template)


def test_a_call_that_does_not_fit_the_function_is_refused_by_a_template_too() -> None:
    with pytest.raises(TypeError, match="argument"):
        key_from_template(simple, "{b}")((), {})


def test_an_object_whose_text_is_its_address_is_refused() -> None:
    with pytest.raises(TypeError, match=r"argument 'a' is a object, .*key="):
        key_from_template(simple, "{a}:{b}")((object(),), {})
