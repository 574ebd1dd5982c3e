import pytest

from stoker.core.errors import BadInput
from stoker.transfer.hub.listing import HUB, read_hub_settings

FILES = {"/home/me/.cache/huggingface/token": "hf_file\n", "/hf/token": "hf_other", "/t": "hf_t"}


def read(endpoint: str = "", **environment: str):
    return read_hub_settings(environment, home="/home/me", read_text=FILES.get, endpoint=endpoint)


def test_without_any_variable_everything_is_where_the_client_has_it():
    settings = read()
    assert settings.endpoint == HUB
    assert settings.cache == "/home/me/.cache/huggingface/hub"
    assert settings.token == "hf_file"
    assert not settings.offline
    assert settings.symlinks


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/x"}, "/hf/hub"),
        ({"HF_HOME": "~/hf"}, "/home/me/hf/hub"),
        ({"HF_HOME": "$DISK/hf", "DISK": "/big"}, "/big/hf/hub"),
        ({"HF_HOME": "${DISK}/hf", "DISK": "/big"}, "/big/hf/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/hf"}, "/old"),
        ({"HF_HUB_CACHE": "/new", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/hf"}, "/new"),
        ({"HF_HUB_CACHE": ""}, "/home/me/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_clients_variables_say(environment, cache):
    assert read(**environment).cache == cache


def test_the_command_line_beats_the_variable_and_that_beats_the_default():
    assert read(HF_ENDPOINT="http://mirror:1/").endpoint == "http://mirror:1"
    assert read("http://other:2", HF_ENDPOINT="http://mirror:1").endpoint == "http://other:2"


@pytest.mark.parametrize(
    ("environment", "token"),
    [
        ({"HF_TOKEN": " hf_mine \n"}, "hf_mine"),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_old"}, "hf_old"),
        ({"HF_TOKEN": "hf_mine", "HUGGING_FACE_HUB_TOKEN": "hf_old"}, "hf_mine"),
        ({"HF_TOKEN": "  "}, "hf_file"),
        ({"HF_TOKEN_PATH": "/t"}, "hf_t"),
        ({"HF_HOME": "/hf"}, "hf_other"),
        ({"HF_TOKEN_PATH": "/nowhere"}, ""),
        ({"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, ""),
        ({"HF_HUB_DISABLE_IMPLICIT_TOKEN": "yes", "HF_TOKEN": "hf_mine"}, ""),
    ],
)
def test_the_token_is_the_one_that_the_client_would_send(environment, token):
    assert read(**environment).token == token


def test_a_token_that_can_not_stand_in_a_header_is_refused_and_not_shown():
    with pytest.raises(BadInput, match="HF_TOKEN") as caught:
        read(HF_TOKEN="two words\r\nX-Evil: 1")
    assert "Evil" not in str(caught.value.to_dict())


def test_settings_do_not_show_their_token():
    assert "hf_mine" not in repr(read(HF_TOKEN="hf_mine"))


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)])
def test_offline_is_what_the_client_takes_for_it(name, value, is_on):
    assert read(**{name: value}).offline is is_on


def test_links_can_be_switched_off():
    assert not read(HF_HUB_DISABLE_SYMLINKS="1").symlinks
