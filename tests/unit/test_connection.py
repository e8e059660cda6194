"""How the API server is found, and the settings are read."""

import json
from pathlib import Path

import pytest

from vllm_operator.controller.settings import Settings, SettingsError
from vllm_operator.kube.connection import MissingConnectionError, load_configuration, proxy_for


@pytest.mark.parametrize(
    ("host", "no_proxy", "want"),
    [
        ("https://api.example.com:6443", "", "http://proxy"),
        ("https://api.example.com:6443", "example.com", None),
        ("https://api.example.com:6443", ".example.com, other", None),
        ("https://api.example.com:6443", "ample.com", "http://proxy"),
        ("https://10.1.2.3", "10.0.0.0/8", None),
        ("https://10.1.2.3", "192.168.0.0/16,localhost", "http://proxy"),
        ("https://[::1]:6443", "::1", None),
        ("https://api.example.com", "*", None),
    ],
)
def test_a_proxy_is_used_as_kubectl_uses_it(host: str, no_proxy: str, want: str | None) -> None:
    assert proxy_for(host, {"HTTPS_PROXY": "http://proxy", "NO_PROXY": no_proxy}) == want


async def test_a_certificate_authority_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    cluster = {"server": "https://api.example.com", "certificate-authority": str(tmp_path / "ca.crt")}
    content = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "b", "user": "c"}}],
        "clusters": [{"name": "b", "cluster": cluster}],
        "users": [{"name": "c", "user": {"token": "t"}}],
    }
    (tmp_path / "config").write_text(json.dumps(content))
    with pytest.raises(MissingConnectionError, match=r"The kubeconfig .* cannot be used: .* no certificate"):
        await load_configuration({"KUBECONFIG": str(tmp_path / "config")})


async def test_without_any_configuration_the_message_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(MissingConnectionError, match=r"KUBECONFIG is not set, .* does not exist, and this is not a Pod"):
        await load_configuration({"HOME": str(tmp_path)})


async def test_a_kubeconfig_with_a_token_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    path = tmp_path / "config"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], "
        f"clusters: [{{name: c, cluster: {{server: 'https://h:1'}}}}], users: [{{name: u, user: {{tokenFile: '{tmp_path}/token'}}}}]}}"
    )
    configuration = await load_configuration({"KUBECONFIG": str(path)})
    assert configuration.host == "https://h:1"
    assert await configuration.get_api_key_with_prefix("BearerToken") == "Bearer secret"


def test_settings_have_defaults_and_are_read_by_type() -> None:
    assert Settings.from_environment({}) == Settings()
    read = Settings.from_environment(
        {"VLLM_OPERATOR_NAMESPACES": "a, b,", "VLLM_OPERATOR_WORKERS": "3", "VLLM_OPERATOR_LOG_FORMAT": "json", "HOME": "/"}
    )
    assert (read.namespaces, read.workers, read.log_format) == (("a", "b"), 3, "json")


def test_what_kubernetes_sets_for_a_service_named_like_the_operator_is_no_setting() -> None:
    links = {
        "VLLM_OPERATOR_SERVICE_HOST": "10.0.0.1",
        "VLLM_OPERATOR_SERVICE_PORT": "8080",
        "VLLM_OPERATOR_SERVICE_PORT_METRICS": "8080",
        "VLLM_OPERATOR_PORT": "tcp://10.0.0.1:8080",
        "VLLM_OPERATOR_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "VLLM_OPERATOR_PORT_8080_TCP_PROTO": "tcp",
        "VLLM_OPERATOR_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert Settings.from_environment(links) == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("WORKERS", "many", "must be a valid integer"),
        ("WORKERS", "-1", "must be greater than or equal to 1, such as 24"),
        ("WORKERS", "0", "must be greater than or equal to 1"),
        ("HUB_WAIT_SECONDS", "-0.5", "must be greater than or equal to 0"),
        ("LOG_LEVEL", "LOUD", "'DEBUG', 'INFO'"),
        ("LOG_FORMAT", "xml", "'text' or 'json'"),
        ("HTTP_PORT", "70000", "must be less than or equal to 65535"),
        ("WOKERS", "1", "is not a setting"),
        ("NAMESPACES", "team-a,Team B", "must be names of namespaces"),
        ("NAMESPACES", "../kube-system", "must be names of namespaces"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(variable: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        Settings.from_environment({f"VLLM_OPERATOR_{variable}": value})
    assert variable in str(caught.value)
