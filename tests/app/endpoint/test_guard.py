"""Who may ask: tables over headers."""

from __future__ import annotations

import pytest

from app.endpoint import guard
from app.endpoint.errors import ApiError
from app.endpoint.guard import GuardRules

NOBODY = GuardRules()
KEY = "k" * 20


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:27182", "127.0.0.1"),
        ("localhost:1", "localhost"),
        ("LocalHost:27182", "localhost"),
        ("localhost.", "localhost"),
        ("localhost.:80", "localhost"),
        ("localhost:", "localhost"),
        ("[::1]", "::1"),
        ("[::1]:27182", "::1"),
        ("Studio.Local:5", "studio.local"),
        ("", None),
        (":80", None),
        ("127.0.0.1@evil.example", None),
        ("evil.example@127.0.0.1", None),
        ("127.0.0.1/path", None),
        ("127.0.0.1?x", None),
        ("127.0.0.1#x", None),
        ("127.0.0.1:port", None),
        ("127.0.0.1:99999", None),
        ("[::1", None),
        ("[nonsense]", None),
    ],
)
def test_the_name_of_a_host_header(header: str, name: str | None) -> None:
    assert guard.host_name(header) == name


@pytest.mark.parametrize(
    "header",
    [
        "127.0.0.1",
        "127.0.0.1:27182",
        "127.8.9.1:1",
        "localhost",
        "LOCALHOST:27182",
        "localhost.",
        "[::1]:27182",
        "[0:0:0:0:0:0:0:1]:27182",
    ],
)
def test_loopback_is_a_host_of_ours_in_every_spelling(header: str) -> None:
    guard.check_host(header, NOBODY)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "evil.example",
        "evil.example:27182",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127-0-0-1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "evillocalhost",
        "localhost.localdomain",
        "0.0.0.0",
        "192.168.1.5",
        "169.254.169.254",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "[::]",
        "[fe80::1]",
        "[::ffff:192.168.1.5]:80",
        "ｌocalhost",
        "127.0.0.1, evil.example",
        "\udcff",
    ],
)
def test_any_other_host_is_refused_with_a_word_on_what_to_do(header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        guard.check_host(header, NOBODY)
    assert (caught.value.status, caught.value.code) == (403, "host_not_allowed")
    assert "allowed_hosts" in caught.value.message


def test_a_configured_host_is_let_in_in_any_case_and_no_other() -> None:
    rules = GuardRules(hosts=frozenset({"studio.local"}))
    guard.check_host("STUDIO.local:27182", rules)
    with pytest.raises(ApiError):
        guard.check_host("studio.local.evil.example", rules)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://localhost:3000", True),
        ("https://127.0.0.1:8443", True),
        ("http://[::1]:3000", True),
        ("http://LOCALHOST:3000", True),
        ("https://app.example", True),
        ("null", False),
        ("", False),
        ("https://evil.example", False),
        ("http://localhost.evil.com", False),
        ("http://127.0.0.1.evil.com", False),
        ("http://localhost@evil.com", False),
        ("http://evil.com@localhost", False),
        ("http://127.0.0.1:80@evil.com", False),
        ("https://app.example.evil.com", False),
        ("http://app.example", False),
        ("https://app.example:444", False),
        ("file://", False),
        ("file://localhost", False),
        ("chrome-extension://localhost", False),
        ("http://", False),
        ("http://[::1", False),
        ("http://localhost:port", False),
        ("localhost", False),
        ("//localhost", False),
        ("http://192.168.1.5", False),
        ("\udcff", False),
    ],
)
def test_the_origin_of_a_browsers_page(origin: str, allowed: bool) -> None:
    rules = GuardRules(origins=frozenset({"https://app.example"}))
    assert guard.origin_allowed(origin, rules) is allowed
    if allowed:
        guard.check_origin(origin, rules)
    else:
        with pytest.raises(ApiError) as caught:
            guard.check_origin(origin, rules)
        assert (caught.value.status, caught.value.code) == (403, "origin_not_allowed")
        assert "allowed_origins" in caught.value.message


def test_a_program_sends_no_origin() -> None:
    guard.check_origin(None, NOBODY)


def test_a_star_allows_every_origin() -> None:
    guard.check_origin("https://anyone.example", GuardRules(origins=frozenset({"*"})))


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"authorization": f"Bearer {KEY}"}, True),
        ({"authorization": f"bearer {KEY}"}, True),
        ({"authorization": f"Bearer  {KEY} "}, True),
        ({"x-api-key": KEY}, True),
        ({"x-api-key": "", "authorization": f"Bearer {KEY}"}, True),
        ({}, False),
        ({"authorization": ""}, False),
        ({"authorization": KEY}, False),
        ({"authorization": f"Basic {KEY}"}, False),
        ({"authorization": "Bearer"}, False),
        ({"authorization": f"Bearer {KEY}x"}, False),
        ({"authorization": f"Bearer {KEY[:-1]}"}, False),
        ({"authorization": "Bearer \udcff\udcfe"}, False),
        ({"x-api-key": "wrong", "authorization": f"Bearer {KEY}"}, False),
        ({"x-api-key": KEY.upper()}, False),
        ({"x-api-key": "ключ"}, False),
    ],
)
def test_the_key(headers: dict[str, str], allowed: bool) -> None:
    rules = GuardRules(key=KEY)
    if allowed:
        guard.check_key(headers, rules)
        return
    with pytest.raises(ApiError) as caught:
        guard.check_key(headers, rules)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.headers() == {"www-authenticate": "Bearer"}
    assert KEY not in caught.value.message


def test_without_a_key_in_the_rules_every_key_and_none_will_do() -> None:
    guard.check_key({}, NOBODY)
    guard.check_key({"authorization": "Bearer anything"}, NOBODY)


@pytest.mark.parametrize("remote", ["127.0.0.1", "127.0.0.5", "::1", "::ffff:127.0.0.1"])
def test_management_answers_the_machine_itself(remote: str) -> None:
    guard.check_management(remote)


@pytest.mark.parametrize("remote", [None, "", "192.168.1.5", "::ffff:192.168.1.5", "fe80::1", "0.0.0.0", "::"])
def test_management_answers_nobody_else(remote: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        guard.check_management(remote)
    assert (caught.value.status, caught.value.code) == (403, "local_only")


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp"],
)
def test_a_form_is_never_json(content_type: str) -> None:
    with pytest.raises(ApiError) as caught:
        guard.check_json(content_type)
    assert caught.value.status == 415
    guard.check_json("application/json")


@pytest.mark.parametrize(
    ("bind", "names"),
    [
        ("127.0.0.1", set()),
        ("::1", set()),
        ("localhost", set()),
        ("0.0.0.0", {"127.0.0.1", "10.0.0.7", "fe80::a"}),
        ("::", {"127.0.0.1", "10.0.0.7", "fe80::a"}),
        ("10.0.0.7", {"10.0.0.7"}),
        ("Studio.local", {"studio.local"}),
    ],
)
def test_the_names_of_an_endpoint_follow_from_its_address(bind: str, names: set[str]) -> None:
    interfaces = ("127.0.0.1", "10.0.0.7", "FE80::A")
    rules = guard.rules_from(
        bind=bind, hosts=("MyBox",), origins=("https://a.example",), key=KEY, interfaces=interfaces
    )
    assert rules == GuardRules(frozenset({"mybox", *names}), frozenset({"https://a.example"}), KEY)


def test_on_all_interfaces_each_address_is_a_host_and_a_foreign_name_is_not() -> None:
    rules = guard.rules_from(bind="0.0.0.0", hosts=(), origins=(), key=KEY, interfaces=("10.0.0.7", "fe80::a"))
    for header in ("10.0.0.7:27182", "[fe80::a]:27182", "127.0.0.1"):
        guard.check_host(header, rules)
    for header in ("10.0.0.8", "0.0.0.0:27182", "evil.example"):
        with pytest.raises(ApiError):
            guard.check_host(header, rules)


def test_an_allowed_page_may_read_the_answer_and_send_what_sdks_send() -> None:
    assert guard.cors_headers(None) == {}
    headers = guard.cors_headers("http://localhost:3000")
    assert headers["access-control-allow-origin"] == "http://localhost:3000"
    assert headers["vary"] == "Origin"
    assert "x-plimsoll-window" in headers["access-control-expose-headers"]
    allowed = guard.preflight_headers()["access-control-allow-headers"].split(", ")
    assert {"*", "authorization", "content-type"} <= set(allowed)
