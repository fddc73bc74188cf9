"""Where packages are looked for: what pip says, and nothing that the checkout names."""

from __future__ import annotations

from headrace.pipeline.index import pip_settings, settings_from

DEFAULT = "https://default.example/simple"


def test_without_configuration_pip_has_its_default_index() -> None:
    assert settings_from("", DEFAULT, {}).index_urls == (DEFAULT,)


def test_the_environment_wins_over_the_command_and_the_command_over_global() -> None:
    listing = (
        "global.index-url='https://global.example/simple'\n"
        "download.index-url='https://command.example/simple'\n"
        "global.find-links='/a\\n/b'\n"
        "global.cert='/global.pem'\n"
        ":env:.cert='/env.pem'\n"
    )
    settings = settings_from(listing, DEFAULT, {})
    assert settings.index_urls == ("https://command.example/simple",)
    assert settings.find_links == ("/a", "/b")
    assert settings.certificate == "/env.pem"


def test_extra_indexes_follow_and_no_index_drops_all() -> None:
    listing = "global.extra-index-url='https://x.example file:///y'\n"
    assert settings_from(listing, DEFAULT, {}).index_urls == (
        DEFAULT,
        "https://x.example",
        "file:///y",
    )
    assert settings_from(listing + ":env:.no-index='1'\n", DEFAULT, {}).index_urls == ()


def test_a_certificate_of_the_environment_is_used_when_pip_names_none() -> None:
    assert settings_from("", DEFAULT, {"SSL_CERT_FILE": "/ssl.pem"}).certificate == "/ssl.pem"


def test_the_real_pip_answers() -> None:
    assert all(url.startswith(("http", "file")) for url in pip_settings().index_urls)
