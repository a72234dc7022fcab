"""What a server can do is found out by asking; what it cannot is told."""

from __future__ import annotations

import socket

import pytest

from exactlm.audit.condition import Shot, Workload
from exactlm.audit.endpoint import EndpointTarget
from exactlm.audit.prompt import load_prompts
from exactlm.errors import ConfigError
from tests.unit.audit.toy import Behaviour, answer_of, serve


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_in_every_shape(is_chat: bool, is_streamed: bool) -> None:
    with serve(Behaviour()) as url:
        target = EndpointTarget(f"{url}/", is_chat=is_chat)
        (answer,) = target.fire((Shot("x", 0, 5, is_streamed=is_streamed),))
        target.close()
    expected = answer_of("x", None, 5)
    assert (answer.error, answer.text, answer.tokens) == (None, "".join(expected), expected)
    assert answer.logprobs == [-0.5, -0.625, -0.75, -0.875, -1.0]
    assert answer.finish_reason == "length"


def test_what_it_cannot_do() -> None:
    with serve(Behaviour(takes_seed=False, tells_logprobs=False)) as url:
        target = EndpointTarget(url)
        told = dict(target.unvaried())
        factors = {c.factor for c in target.conditions(Workload(load_prompts()))}
        (answer,) = target.fire((Shot("x", 0, 5),))
        target.close()
    assert "no logprobs here" in told["logprobs"]
    assert "no seed here" in told["seed"]
    assert {"logprobs", "seed"}.isdisjoint(factors)
    assert {"streaming", "concurrency", "cache"} <= factors
    assert (answer.error, answer.logprobs) == (None, None)


def test_a_failure_is_told() -> None:
    with serve(Behaviour()) as url:
        target = EndpointTarget(url)
    (answer,) = target.fire((Shot("x", 0, 5),))
    assert answer.error is not None
    assert "ConnectError" in answer.error
    assert not target.is_alive()
    target.close()


def test_a_password_in_the_url_is_told_to_the_server_alone() -> None:
    with serve(Behaviour()) as url:
        target = EndpointTarget(url.replace("//", "//me:hush@"))
        target.close()
    assert target.describe()["engine"] == f"{url}/v1"
    with pytest.raises(ConfigError) as caught:
        EndpointTarget(url.replace("//", "//me:hush@"))
    assert "hush" not in str(caught.value)


def test_no_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ConfigError, match="is the server running"):
            EndpointTarget(f"http://127.0.0.1:{free.getsockname()[1]}")


@pytest.mark.parametrize("model", [None, "toy"])
@pytest.mark.parametrize("url", ["http://[::1", "http://\0"])
def test_no_url(url: str, model: str | None) -> None:
    with pytest.raises(ConfigError, match=r"InvalidURL|is no URL"):
        EndpointTarget(url, model)


@pytest.mark.parametrize("key", ["schl\u00fcssel", "a\nb"])
def test_no_key_for_a_header(key: str) -> None:
    with pytest.raises(ConfigError, match="EXACTLM_API_KEY"):
        EndpointTarget("http://127.0.0.1:9", key=key)


def test_a_server_that_fails_from_the_first() -> None:
    with serve(Behaviour(fails_every=1)) as url, pytest.raises(ConfigError, match=r"status 500.*out of luck"):
        EndpointTarget(url)
