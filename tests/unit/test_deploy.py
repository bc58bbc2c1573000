"""The files for deployment, as far as they can be checked without running them.

There is no Docker and no Kubernetes here: images and manifests are read, not run.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from postroom.cli.app import cli
from postroom.cli.configuration import Configuration, Source
from postroom.telemetry.metric_names import documented

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/postroom.rules.yml"
RUNBOOK = (ROOT / "docs/operations/runbook.md").read_text()


def alerts():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def names_in(expression):
    """Return the metrics that an expression speaks of, as they are documented."""
    found = re.findall(r"\b((?:postroom|outbox)_[a-z_]+)", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def run(*argv, cwd=DEPLOY):
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.req("S2.8")
def test_the_alerts_are_right_and_fire_when_they_should():
    checked = run("promtool", "check", "rules", RULES.name, cwd=RULES.parent)
    assert checked.returncode == 0, checked.stderr
    tested = run("promtool", "test", "rules", "postroom.rules.test.yml", cwd=RULES.parent)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert {"PostroomLagHigh", "PostroomDeadLettersGrowing"} <= set(alerts())


def test_every_alert_has_a_test_and_a_page_in_the_runbook():
    tests = (DEPLOY / "prometheus/postroom.rules.test.yml").read_text()
    headings = re.findall(r"^## (\S+)$", RUNBOOK, re.MULTILINE)
    for name, rule in alerts().items():
        assert f"alertname: {name}\n" in tests
        assert name in headings
        assert rule["annotations"]["runbook"] == f"docs/operations/runbook.md#{name.lower()}"


def test_alerts_and_dashboard_speak_of_documented_metrics():
    known = set(documented())
    for rule in alerts().values():
        assert names_in(rule["expr"]) <= known
    board = json.loads((DEPLOY / "grafana/postroom.json").read_text())
    used = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            used |= names_in(target["expr"])
    assert used
    assert used <= known
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("kind", ["Deployment"])
def test_the_dashboard_runs_without_rights_and_is_closed(kind):
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes/dashboard.yaml").read_text()))
    (manifest,) = [one for one in found if one["kind"] == kind]
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][-1] in cli.commands
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert [volume["secret"]["secretName"] for volume in pod["volumes"]] == ["postroom-dashboard"]


def test_the_unit_of_the_dashboard_is_as_hardened_as_that_of_a_relay():
    relay, dashboard = (
        (DEPLOY / f"systemd/postroom{name}.service").read_text().splitlines()
        for name in ("", "-dashboard")
    )
    apart = (
        "#",
        "Description",
        "ExecStart",
        "StateDirectory",
        "WorkingDirectory",
        "Memory",
        "Timeout",
    )
    kept = [line for line in relay if not line.startswith(apart)]
    assert [line for line in dashboard if not line.startswith(apart)] == kept
    assert any(line.endswith("postroom.toml dashboard") for line in dashboard)


def test_the_unit_is_sound(tmp_path):
    unit = (DEPLOY / "systemd/postroom.service").read_text()
    (tmp_path / "postroom.service").write_text(unit)
    if shutil.which("systemd-analyze"):  # only where there is systemd
        checked = run("systemd-analyze", "verify", str(tmp_path / "postroom.service"), cwd=tmp_path)
        assert [line for line in checked.stderr.splitlines() if "postroom" in line] == []
        assert checked.returncode == 0, checked.stderr
    lines = unit.splitlines()
    hardening = {
        "CapabilityBoundingSet=", "LockPersonality=yes", "NoNewPrivileges=yes", "PrivateDevices=yes",
        "PrivateTmp=yes", "PrivateUsers=yes", "ProtectClock=yes", "ProtectControlGroups=yes",
        "ProtectHome=yes", "ProtectHostname=yes", "ProtectKernelLogs=yes", "ProtectKernelModules=yes",
        "ProtectKernelTunables=yes", "ProtectProc=invisible", "ProtectSystem=strict",
        "RestrictNamespaces=yes", "RestrictRealtime=yes", "RestrictSUIDSGID=yes",
        "SystemCallArchitectures=native", "SystemCallFilter=@system-service", "UMask=0077",
    }  # fmt: skip
    assert hardening - set(lines) == set()
    stop = int(re.search(r"TimeoutStopSec=(\d+)", unit)[1])
    assert stop > Configuration(Source(), {}).relays({})[0].settings.stop_seconds


def test_the_image_has_the_versions_that_the_tests_ran_with():
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"\bpip install ([^\n&]*)", dockerfile)
    assert installs
    assert all("-c /src/constraints.txt" in install for install in installs)
    assert re.search(r"^COPY .*\bconstraints\.txt", dockerfile, re.MULTILINE)
    assert re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE)[-1] not in ("root", "0")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"^ARG EXTRAS=(\S+)", dockerfile, re.MULTILINE)[1].split(",")
    needed = [*project["dependencies"]]
    for extra in extras:
        needed += project["optional-dependencies"][extra]
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    names = {re.match(r"[\w.-]+", one)[0].lower().replace("_", "-") for one in needed}
    assert names <= {name.lower().replace("_", "-") for name in pinned}


def manifests():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes/postroom.yaml").read_text()))


def test_the_manifests_have_probes_and_time_to_stop():
    kinds = {manifest["kind"]: manifest for manifest in manifests()}
    assert set(kinds) == {
        "ConfigMap", "Job", "Deployment", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    (seconds,) = container["lifecycle"]["preStop"]["exec"]["command"][1:]
    (tmp,) = [kinds["ConfigMap"]["data"]["postroom.toml"]]
    stop = int(re.search(r"stop_seconds = (\d+)", tmp)[1])
    assert pod["terminationGracePeriodSeconds"] > stop + int(seconds)


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_no_container_has_more_rights_than_it_needs(kind):
    (manifest,) = [m for m in manifests() if m["kind"] == kind]
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]


def test_the_metrics_port_is_for_monitoring_alone():
    (policy,) = [m["spec"] for m in manifests() if m["kind"] == "NetworkPolicy"]
    (rule,) = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == [9464]
    assert rule["from"]


def test_their_settings_are_settings(tmp_path):
    from postroom.cli.configuration import load

    (text,) = [m["data"]["postroom.toml"] for m in manifests() if m["kind"] == "ConfigMap"]
    (tmp_path / "postroom.toml").write_text(text)
    found = load(None, {}, tmp_path)
    assert found.get("metrics_port").value == 9464
    assert found.relays({})[0].settings.lease_seconds == 15


def test_the_commands_in_the_files_are_commands():
    files = [DEPLOY / "docker/Dockerfile", DEPLOY / "systemd/postroom.service"]
    for path in [*files, DEPLOY / "docker/compose.yaml", DEPLOY / "kubernetes/postroom.yaml"]:
        text = path.read_text()
        options = set(re.findall(r"(?<![\w-])(--(?:metrics|log|name|config)[a-z-]*)", text))
        known = {o for p in [*cli.params, *cli.commands["run"].params] for o in p.opts}
        assert options <= known, path
    compose = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
    assert compose["services"]["relay"]["stop_grace_period"] == "45s"
    docker = (DEPLOY / "docker/Dockerfile").read_text()
    assert "USER 10001" in docker
    assert 'CMD ["postroom", "health"]' in docker
