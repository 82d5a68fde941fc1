"""The sidecar's manifests and the image: valid by their published schemas, locked down, and in step with the relay."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import aep_relay
from aep_relay.config import Operator, load
from tests.system.operated import operated

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "sidecar" / "compose.yaml"
KUBERNETES = ROOT / "deploy" / "sidecar" / "kubernetes.yaml"
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"
CONFIG = ROOT / "config" / "sidecar.toml"
KUBERNETES_VERSION = "1.34"


def checked(module: str, *arguments: str) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name(module)), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def documents() -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(KUBERNETES.read_text())}


POD = documents()["Deployment"]["spec"]["template"]["spec"]
RELAY = POD["initContainers"][0]
SERVICE = yaml.safe_load(COMPOSE.read_text())["services"]["relay"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_the_compose_file_is_valid() -> None:
    checked("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))


def test_the_manifest_is_valid() -> None:
    checked("kubernetes-validate", "--strict", "--kubernetes-version", KUBERNETES_VERSION, str(KUBERNETES))


def test_both_run_the_shipped_configuration() -> None:
    assert documents()["ConfigMap"]["data"]["relay.toml"] == CONFIG.read_text()
    relay = yaml.safe_load(COMPOSE.read_text())["configs"]["relay"]
    assert (COMPOSE.parent / relay["file"]).resolve() == CONFIG
    config = load(CONFIG, {"AEP_HUB_TOKEN": "abc"}, {})
    assert config.listen.unix == "/run/aep/relay.sock"
    assert RELAY["args"] == SERVICE["command"] == ["serve", "--config", "/etc/aep-relay/relay.toml"]
    mounts = {mount["name"]: mount["mountPath"] for mount in RELAY["volumeMounts"]}
    assert mounts == {"config": "/etc/aep-relay", "socket": "/run/aep"}


def test_the_pod_gives_a_drain_its_time() -> None:
    assert RELAY["restartPolicy"] == "Always"
    pause: int = RELAY["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["terminationGracePeriodSeconds"] > pause + 10
    assert SERVICE["stop_grace_period"] == "15s"


def test_the_relay_may_do_next_to_nothing() -> None:
    context = RELAY["securityContext"]
    assert POD["securityContext"]["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert SERVICE["read_only"]
    assert SERVICE["cap_drop"] == ["ALL"]
    (user,) = [text for name, text in instructions() if name == "USER"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}" == "10001:10001"


def test_the_image_is_built_in_stages_from_what_is_there() -> None:
    stages = [text for name, text in instructions() if name == "FROM"]
    assert stages == ["python:3.13-slim AS build", "python:3.13-slim"]
    copied = [text.split()[:-1] for name, text in instructions() if name == "COPY"]
    assert copied.pop() == ["--from=build", "/opt/aep-relay"]
    ignored = Path(f"{DOCKERFILE}.dockerignore").read_text().splitlines()
    for source in [source for sources in copied for source in sources]:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    assert RELAY["image"].endswith(f":{aep_relay.__version__}")


def health_checks() -> dict[str, list[str]]:
    (image,) = [text.split("CMD ")[1] for name, text in instructions() if name == "HEALTHCHECK"]
    probes = {name: RELAY[name]["exec"]["command"] for name in RELAY if name.endswith("Probe")}
    return {"image": json.loads(image), **probes}


def test_every_builder_knows_how_health_is_asked_for() -> None:
    (check,) = [text for name, text in instructions() if name == "HEALTHCHECK"]
    # Later flags end the build of an older Docker, and of Podman.
    flags = set(re.findall(r"--([a-z-]+)=", check))
    assert flags <= {"interval", "timeout", "start-period", "retries"}


def test_health_is_asked_for_where_the_operator_plane_is(tmp_path: Path) -> None:
    checks = health_checks()
    assert len(checks) == 4
    port = str(Operator().port)
    for name, (python, option, program) in checks.items():
        assert (python, option) == ("python", "-c")
        kind = "live" if name == "livenessProbe" else "ready"
        assert f"'http://127.0.0.1:{port}/health/{kind}'" in program
    program = checks["image"][2]
    with operated(tmp_path) as relay:
        program = program.replace(port, str(relay.ops_port))
        for asked, healthy in ((program, True), (program.replace("/ready", "/sick"), False)):
            done = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=False)
            assert (done.returncode == 0) == healthy, done.stderr
        assert relay.relay.end(signal.SIGTERM) == 0
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("file", [COMPOSE, KUBERNETES], ids=lambda path: path.name)
def test_no_token_stands_in_a_file(file: Path) -> None:
    assert "AEP_HUB_TOKEN" in file.read_text()
    assert not re.search(r"AEP_HUB_TOKEN[:=] *['\"]?\w", file.read_text())
