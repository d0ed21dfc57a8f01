"""What can be decorated, with which words, and how errors say what to do."""

# ruff: noqa: ARG002, ARG005 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import inspect
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import TemplateView

import django_singleflight
import singleflight_sync
from django_singleflight import decorators, single_flight
from singleflight_sync import ConfigurationError
from tests.djangoapp.views.site import Page, Visitor, statuses, texts
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from tests.djangoapp.views.site import Site


def view(request: HttpRequest, number: int = 0) -> HttpResponse:
    """A view."""
    return HttpResponse(f"x{number}")


def test_a_decorated_view_keeps_its_name_and_attributes() -> None:
    view.mark = 1  # type: ignore[attr-defined]
    decorated: Any = single_flight(view)
    assert (decorated.__name__, decorated.__doc__, decorated.mark) == ("view", "A view.", 1)
    assert decorated.__wrapped__ is view
    assert single_flight(ttl=1)(view).__name__ == "view"


class Object:
    """A view that is an object."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("object")


class Report(View):
    def get(self, request: HttpRequest, number: int = 0) -> HttpResponse:
        return HttpResponse("report")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (view, f"{__name__}.view"),
        (Object(), f"{__name__}.Object"),
        (partial(view, number=3), f"{__name__}.view"),
        (Report.as_view(), f"{__name__}.Report"),
        (Report().get, f"{__name__}.Report.get"),
    ],
    ids=["function", "object", "partial", "as_view", "method"],
)
def test_views_of_all_kinds(function: Any, name: str, site: Site) -> None:
    assert decorators._name_of(function) == name
    site.serve(single_flight(function))
    assert Visitor().get().status_code == 200


def test_two_classes_that_inherit_dispatch_have_two_names(site: Site) -> None:
    def by_nothing(request: HttpRequest) -> str:
        return "same"

    decorate = method_decorator(single_flight(key=by_nothing, ttl=60), name="dispatch")

    @decorate
    class One(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("one")

    @decorate
    class Two(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("two")

    got = []
    for kind in (One, Two):
        site.serve(kind.as_view())
        got += texts([Visitor().get(), Visitor().get()])
    assert got == ["one", "one", "two", "two"]


def test_a_method_with_parameters_of_the_address(site: Site) -> None:
    class Numbered(View):
        @method_decorator(single_flight(ttl=60))
        def get(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse(str(number))

    as_view = Numbered.as_view()
    site.serve(lambda request: as_view(request, number=int(request.GET["n"])))
    assert texts([Visitor().get("/", QUERY_STRING=f"n={n}") for n in (1, 2, 1)]) == ["1", "2", "1"]


def test_a_generic_view_renders_inside_the_flight(site: Site) -> None:
    template = engines["django"].from_string("{{ view.kwargs }}{{ request.path }}")

    class Generic(TemplateView):
        def render_to_response(self, context: Any, **_: Any) -> TemplateResponse:
            page(self.request)
            response = TemplateResponse(self.request, template, context)
            response.add_post_render_callback(lambda made: callbacks.append(made.content))
            return response

    callbacks: list[bytes] = []
    page = Page(view)
    site.serve(single_flight(Generic.as_view()))
    assert texts(site.herd(page, Visitor(), Visitor(), path="/a")) == ["{}/a"] * 2
    assert page.runs == 1
    assert callbacks == [b"{}/a"]


# Refusals


async def asynchronous(request: HttpRequest) -> HttpResponse:
    return HttpResponse("x")


class AsyncObject:
    async def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("x")


class AsyncView(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("x")


def no_argument() -> None: ...


def keyword_only(*, request: HttpRequest) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (Report, "method_decorator.*singleflight_sync.single_flight"),
        (Report.get, "method_decorator.*singleflight_sync.single_flight"),
        (no_argument, "method_decorator.*singleflight_sync.single_flight"),
        (keyword_only, "method_decorator.*singleflight_sync.single_flight"),
        (asynchronous, "async"),
        (AsyncObject(), "async"),
        (AsyncView.as_view(), "async"),
        (partial(asynchronous), "async"),
        ("text", "by name"),
        (5, "by name"),
    ],
    ids=["class", "method", "no argument", "keyword only", "async", "object", "view", "partial", "text", "number"],
)
def test_what_cannot_be_decorated(function: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        single_flight(function)


def test_a_coroutine_that_comes_back_is_closed_and_an_error(site: Site) -> None:
    made: list[Any] = []

    def hidden(request: HttpRequest) -> Any:
        made.append(asynchronous(request))
        return made[-1]

    with pytest.raises(TypeError, match="coroutine"):
        single_flight(hidden)(RequestFactory().get("/"))
    assert [inspect.getcoroutinestate(each) for each in made] == ["CORO_CLOSED"]


@pytest.mark.parametrize("argument", [5, None, "x", Report()])
def test_a_call_without_a_request(argument: Any) -> None:
    with pytest.raises(TypeError, match=r"method_decorator.*singleflight_sync.single_flight"):
        single_flight(view)(argument)


def test_the_decorator_for_functions_names_this_one_when_it_is_given_a_request() -> None:
    with pytest.raises(TypeError, match="django_singleflight"):
        singleflight_sync.single_flight(view)(RequestFactory().get("/"))


@pytest.mark.parametrize(
    "words",
    [
        {"max_waiting": -1},
        {"max_waiting": 1.5},
        {"max_waiting": True},
        {"max_waiting": "3"},
        {"on_busy": "wait"},
        {"on_busy": None},
        {"ttl": -1},
        {"ttl": "x"},
        {"wait_timeout": -1},
        {"lease": 0.1},
        {"error_ttl": 5},
        {"max_bytes": 5},
        {"nonsense": 1},
        {"shared": None},
        {"vary_on": 5},
        {"key": "x"},
    ],
    ids=repr,
)
def test_words_that_cannot_be_used(words: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(words))):
        single_flight(**words)


def test_timeout_is_no_word() -> None:
    with pytest.raises(TypeError, match="wait_timeout"):
        single_flight(timeout=5)  # type: ignore[call-overload]


# Bad input


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"key": lambda request: None}, "must return a str"),
        ({"key": lambda request: b"x"}, "must return a str"),
        ({"key": lambda request: 1 / 0}, "division"),
        ({"vary_on": lambda request: b"x"}, "must return a str, an int or None"),
        ({"vary_on": lambda request: 1 / 0}, "division"),
    ],
    ids=["None", "bytes", "raises", "vary_on bytes", "vary_on raises"],
)
def test_callables_that_misbehave(words: Any, text: str, site: Site) -> None:
    page = Page(view)
    with pytest.raises((TypeError, ZeroDivisionError), match=text):
        single_flight(**words)(page)(RequestFactory().get("/"))
    assert page.runs == 0


@pytest.mark.parametrize("answer", [None, "text", 5, HttpResponse])
def test_a_view_that_returns_no_response(answer: Any, site: Site) -> None:
    page = Page(lambda request: answer)
    site.serve(single_flight(page))
    assert statuses(site.herd(page, Visitor(), Visitor())) == [500, 500]


def test_a_query_of_8000_bytes(site: Site) -> None:
    page = Page(lambda r: HttpResponse(r.GET["q"][-1]))
    page.go_on.set()
    site.serve(single_flight(ttl=60)(page))
    assert texts([Visitor().get("/", QUERY_STRING=f"q={'x' * 8000}{each}") for each in "aba"]) == ["a", "b", "a"]
    assert page.runs == 2


def test_requests_of_a_factory_without_session_and_user(site: Site) -> None:
    page = Page(view)
    page.go_on.set()
    decorated = single_flight(shared=True, ttl=60)(page)
    for _ in range(2):
        assert decorated(RequestFactory().get("/")).content == b"x0"
    assert page.runs == 1


def test_a_stream_passes_through_unread(site: Site) -> None:
    read: list[str] = []

    def stream(request: HttpRequest) -> StreamingHttpResponse:
        def parts() -> Any:
            read.append("x")
            yield "x"

        return StreamingHttpResponse(parts())

    response: Any = single_flight(stream)(RequestFactory().get("/"))
    assert read == []
    assert b"".join(response) == b"x"


def test_an_argument_that_cannot_stand_in_a_key_makes_a_page_of_its_own(site: Site) -> None:
    page = Page(lambda r, thing: HttpResponse("x"))
    page.go_on.set()
    decorated = single_flight(shared=True, ttl=60)(page)
    site.serve(lambda request: decorated(request, object()))
    assert texts([Visitor().get(), Visitor().get()]) == ["x", "x"]
    assert page.runs == 2


def test_a_vary_on_that_looks_at_the_user_is_not_a_look_of_the_view(site: Site) -> None:
    page = Page(view)
    site.serve(single_flight(shared=True, vary_on=lambda request: request.user.is_authenticated)(page))
    site.herd(page, site.sign_in("ada"), site.sign_in("bob"))
    assert page.runs == 1


# Django REST framework, as far as it can be seen from outside


def test_a_response_of_rest_framework_without_a_renderer_is_refused() -> None:
    kind = type("Response", (TemplateResponse,), {"__module__": "rest_framework.response"})

    def api(request: HttpRequest) -> Any:
        return kind(request, "x")

    with pytest.raises(TypeError, match=r"renderer.*dispatch"):
        single_flight(api)(RequestFactory().get("/"))


def test_a_request_of_rest_framework_is_refused() -> None:
    class Request:
        _request = RequestFactory().get("/")

    with pytest.raises(TypeError, match="dispatch"):
        single_flight(view)(Request())


# Import


def test_the_package_exports_the_decorator_and_nothing_else() -> None:
    assert django_singleflight.__all__ == ["single_flight"]
    with pytest.raises(AttributeError):
        django_singleflight.nonsense  # noqa: B018


def test_it_can_be_imported_and_used_before_there_are_settings() -> None:
    code = (
        "from django_singleflight import single_flight\n"
        "import django_singleflight.decorators\n"
        "single_flight(shared=True, ttl=5)(lambda request: None)\n"
        "import sys; assert 'django.contrib.auth' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, env={}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_it_works_without_the_app(site: Site) -> None:
    site.set(INSTALLED_APPS=[])
    page = Page(view)
    site.serve(single_flight(page))
    assert texts(site.herd(page, Visitor(), Visitor())) == ["x0", "x0"]
    assert page.runs == 1
