"""Services as text: what systemd and launchd read, with paths that try to be something else."""

from __future__ import annotations

import plistlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import BadInput
from stoker.core.frozen import changed
from stoker.host.install import FROM_PIP
from stoker.launch import service as launch_service
from stoker.launch.service import (
    HOPELESS,
    NOT_PASSED_ON,
    PASSED_ON,
    SECRETS,
    WRITTEN_BY,
    ServiceKind,
    SupervisedService,
    make_service,
    plist_words,
    render_plist,
    render_unit,
    service_label,
    unit_words,
)
from stoker.worker.environments.uv import _FOR_OTHERS

HOSTILE = "/srv/a b%h$HOME'\"\\é;#"
SPACE = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"


def service_of(
    *words: str, kind: ServiceKind = ServiceKind.WORK, home: str = "/srv/stoker", **more: Any
) -> SupervisedService:
    environment: Mapping[str, str] = more.pop("environment", {"PATH": "/usr/bin:/bin"})
    return make_service(
        kind, words, python="/usr/bin/python3", home=home, usual_home="/srv/stoker", environment=environment, **more
    )


def settings_of(text: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_a_unit_says_how_to_start_restart_watch_and_stop():
    said = settings_of(render_unit(service_of("--slots", "2", grace_s=60.0)))
    assert said["ExecStart"] == '"/usr/bin/python3" "-m" "stoker" "work" "--slots" "2"'
    assert said["Type"] == "notify"
    assert said["WatchdogSec"] == "180"
    assert said["Restart"] == "on-failure"
    assert said["RestartPreventExitStatus"].split() == [str(code) for code in HOPELESS]
    assert {"2", "20", "29", "33", "35", "78"} <= set(said["RestartPreventExitStatus"].split())
    assert "75" not in said["RestartPreventExitStatus"].split(), "drained on purpose means: start me again"
    assert said["TimeoutStopSec"] == "180"
    assert said["WantedBy"] == "default.target"


def test_a_killed_worker_leaves_its_jobs_to_the_next_one_and_a_coordinator_leaves_nothing():
    assert settings_of(render_unit(service_of()))["KillMode"] == "process"
    assert settings_of(render_unit(service_of(kind=ServiceKind.SERVE)))["KillMode"] == "mixed"


@pytest.mark.parametrize(
    ("kind", "words"), [(ServiceKind.LAUNCH, ("watch",)), (ServiceKind.SERVE, ("--listen", "0.0.0.0", "--launch"))]
)
def test_a_launcher_leaves_its_workers_and_gets_what_backends_read(kind: ServiceKind, words: tuple[str, ...]):
    names = ("KUBECONFIG", "RAY_AUTH_TOKEN_PATH", "SLURM_CONF", "SSH_AUTH_SOCK")
    environment = {**dict.fromkeys(names, "/x"), "RAY_AUTH_TOKEN": "s3cret"}
    service = service_of(*words, kind=kind, environment=environment)
    assert settings_of(render_unit(service))["KillMode"] == "process"
    assert set(service.environment) == {"STOKER_HOME", *names}
    assert set(service_of(kind=ServiceKind.SERVE, environment=environment).environment) == {"STOKER_HOME"}


def test_what_systemd_would_read_as_its_own_is_escaped():
    service = service_of("--name", HOSTILE, home=HOSTILE)
    said = settings_of(render_unit(service))
    words = shlex.split(said["ExecStart"].replace("%%", "%"))
    assert words == [":/usr/bin/python3", "-m", "stoker", "work", "--name", HOSTILE]
    assert said["WorkingDirectory"] == HOSTILE.replace("%", "%%")
    assert f'"STOKER_HOME={HOSTILE}"'.replace("\\", "\\\\").replace("'\"", "'\\\"").replace("%", "%%") in render_unit(
        service
    )


def test_no_secret_of_the_environment_gets_into_a_service():
    environment = {
        "PATH": "/bin",
        "STOKER_OPERATOR_TOKEN": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "HF_TOKEN": "s3cret",
    }
    service = service_of(environment=environment)
    for text in (render_unit(service), render_plist(service)):
        assert "s3cret" not in text
    assert service.environment == {"STOKER_HOME": "/srv/stoker", "PATH": "/bin"}


def test_every_setting_of_stoker_reaches_a_service_or_is_listed_with_why_not():
    source = Path(launch_service.__file__).parents[1]
    read = {
        name
        for path in source.rglob("*.py")
        if path.parent.name != "launch"
        for name in re.findall(r'"(STOKER_[A-Z][A-Z_]*)"', path.read_text(encoding="utf-8"))
    }
    assert "STOKER_CONTAIN" in read
    assert read - set(PASSED_ON) == set(NOT_PASSED_ON), "a new variable: pass it on to services, or say why not"
    assert {name for name in PASSED_ON if name.startswith("STOKER_")} <= read, "a variable that nothing reads"


def test_what_the_hub_the_network_and_uv_read_reaches_a_service():
    source = Path(launch_service.__file__).parents[1]
    hub = re.findall(
        r'"((?:HF|HUGGINGFACE|TRANSFORMERS|XDG)_[A-Z_]+)"', (source / "transfer/hub/listing.py").read_text()
    )
    hub += re.findall(r'"((?:HF|HUGGING_FACE)_[A-Z_]+)"', (source / "transfer/hub/listing.py").read_text())
    http = re.findall(r'"((?:[A-Z]+_){2}[A-Z]+|no_proxy|NO_PROXY)"', (source / "host/http/exchange.py").read_text())
    proxies = [f"{name}_proxy" for name in ("http", "https", "all")]
    wanted = {*hub, *http, *proxies, *map(str.upper, proxies)} - {"REQUEST_METHOD"}
    assert {"HF_HOME", "HF_TOKEN", "SSL_CERT_FILE", "no_proxy"} <= wanted
    uv = {*FROM_PIP, *_FOR_OTHERS}
    assert (wanted | uv) - set(PASSED_ON) == set(SECRETS)


def test_settings_reach_a_service_and_those_with_a_password_are_named():
    environment = {
        "STOKER_CONTAIN": "bare",
        "HF_HOME": "/data/hf",
        "https_proxy": "http://proxy:3128",
        "HTTP_PROXY": "http://anna:hunter2@proxy:3128",
        "all_proxy": "anna:hunter2@proxy:3128",
        "UV_INDEX": "https://t0ken@index.example/simple",
        "HF_TOKEN": "hunter2",
        "PATH": "/opt/user@host/bin:/bin",
    }
    service = service_of(environment=environment)
    assert service.environment == {
        "STOKER_HOME": "/srv/stoker",
        "STOKER_CONTAIN": "bare",
        "HF_HOME": "/data/hf",
        "https_proxy": "http://proxy:3128",
        "PATH": "/opt/user@host/bin:/bin",
    }
    assert sorted(service.left_out) == ["HF_TOKEN", "HTTP_PROXY", "UV_INDEX", "all_proxy"]
    for text in (render_unit(service), render_plist(service)):
        assert "hunter2" not in text
        assert "t0ken" not in text


def test_a_coordinator_can_be_told_to_read_its_files_again_and_a_worker_can_not():
    assert settings_of(render_unit(service_of(kind=ServiceKind.SERVE)))["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "ExecReload" not in settings_of(render_unit(service_of()))


def test_an_address_with_a_password_is_refused_and_the_password_not_repeated():
    with pytest.raises(BadInput) as refused:
        service_of("--db", "postgresql://anna:hunter2@db.example/q", kind=ServiceKind.SERVE)
    assert "hunter2" not in str(refused.value)
    assert "anna" in str(refused.value)
    service_of("--db", "postgresql://anna@db.example:5432/q", kind=ServiceKind.SERVE)


@pytest.mark.parametrize(
    "home", ["/srv/a\nb", "/srv/\udcff", "relative", "/srv/a\\"], ids=["line", "bytes", "part", "end"]
)
def test_a_folder_that_no_file_can_name_is_refused(home: str):
    with pytest.raises(BadInput):
        service_of(home=home)


def test_homes_and_workers_have_services_of_their_own():
    usual = service_label(ServiceKind.WORK, "/srv/stoker", "/srv/stoker")
    assert usual == "stoker-work"
    labels = {
        usual,
        service_label(ServiceKind.WORK, "/other", "/srv/stoker"),
        service_label(ServiceKind.WORK, "/third", "/srv/stoker"),
    }
    labels |= {
        service_label(ServiceKind.WORK, "/srv/stoker", "/srv/stoker", called="small"),
        service_label(ServiceKind.SERVE, "/o", "/o"),
    }
    assert len(labels) == 5


def test_a_worker_beside_a_coordinator_starts_after_it():
    assert "After=stoker-serve.service" in render_unit(service_of(after="stoker-serve"))
    assert render_unit(service_of()).startswith(WRITTEN_BY)


def test_a_property_list_holds_every_word_as_it_is():
    service = service_of("--name", HOSTILE, home=HOSTILE)
    said = plistlib.loads(render_plist(service).encode())
    assert tuple(said["ProgramArguments"][-len(service.argv) :]) == service.argv
    assert said["EnvironmentVariables"]["STOKER_HOME"] == HOSTILE
    assert said["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (1, 1), (22, 0), (78, 0), (75, 75), (143, 0)])
def test_the_shell_before_a_program_of_launchd_ends_with_0_where_a_restart_mends_nothing(code: int, seen: int):
    service = changed(service_of(), argv=("/bin/sh", "-c", f"exit {code}"))
    words = plistlib.loads(render_plist(service).encode())["ProgramArguments"]
    assert subprocess.run(words, timeout=20, check=False).returncode == seen


def test_the_shell_before_a_program_of_launchd_passes_the_request_to_end_on():
    script = "trap 'echo ended; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
    service = changed(service_of(), argv=("/bin/sh", "-c", script))
    words = plistlib.loads(render_plist(service).encode())["ProgramArguments"]
    # One that is asked as soon as its program speaks: nothing is lost between the start and the first wait.
    for _ in range(20):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            assert process.communicate(timeout=20)[0] == "ended\n"
            assert process.returncode == 0


@pytest.mark.parametrize(
    ("render", "read"),
    [(render_unit, unit_words), (render_plist, plist_words)],
    ids=["systemd", "launchd"],
)
@pytest.mark.parametrize(
    "words",
    [(), ("--slots", "2"), ("--name", "a b", "--declare", 'x\\"y\\\\', "", "end \\", "--keep-workspace")],
    ids=["none", "plain", "odd"],
)
def test_the_words_of_a_service_are_read_back_from_its_file(
    render: Callable[[SupervisedService], str], read: Callable[[str], tuple[str, ...]], words: tuple[str, ...]
):
    assert read(render(service_of(*words))) == words
    assert read("") == ()


def test_what_systemd_would_read_as_its_own_is_read_back():
    assert unit_words(render_unit(service_of("--name", HOSTILE))) == ("--name", HOSTILE)
