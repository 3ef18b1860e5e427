"""The HTTP API: what it answers, and whom it lets in."""

import os
import socket
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from k40s.errors import BadInput, Conflict
from k40s.local.bodies import Top
from k40s.local.fakes import World
from k40s.local.service import allowed, listen, make_app, peer_of

HOG = """
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {name: hog}
spec:
  criticality: NO
  commands: [{name: main, command: [sleep, '60'], resources: {requests: {cpu: 50m}, limits: {cpu: 200m}}}]
"""


@pytest.fixture
def stops() -> list[bool]:
    return []


@pytest.fixture
def http(tmp_path: Path, stops: list[bool]) -> TestClient:
    return TestClient(make_app(World(tmp_path).engine(), stops.append))


def test_a_job_from_apply_to_delete(http: TestClient) -> None:
    (applied,) = http.post("/v1/apply", content=HOG).json()
    assert (applied["outcome"], applied["name"]) == ("admitted", "default/hog")
    assert http.get("/v1/jobs/default/hog").json()["status"]["phase"] == "Running"
    assert len(http.get("/v1/jobs").json()) == 1
    assert http.get("/v1/jobs/default/hog/why-not").json()["lines"]
    top = Top.model_validate(http.get("/v1/top").json())
    assert [container.job for container in top.containers] == ["default/hog"]
    assert http.delete("/v1/jobs/default/hog").status_code == 204
    assert [event["reason"] for event in http.get("/v1/events").json()] == ["Admitted", "Started", "Deleted"]
    assert http.get("/v1/events", params={"after": 2}).json()[0]["reason"] == "Deleted"


def test_the_node_explains_itself(http: TestClient) -> None:
    status = http.get("/v1/node").json()["status"]
    lines = http.get("/v1/node/explain").json()["lines"]
    assert f"{status['score']:.3f}" in lines[0]
    assert len(lines) > 40


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "word"),
    [
        ("GET", "/v1/jobs/default/none", b"", 404, "none"),
        ("DELETE", "/v1/jobs/default/none", b"", 404, "k40s get"),
        ("POST", "/v1/apply", b"kind: [", 400, ""),
        ("POST", "/v1/apply", b"\xff\xfe", 400, "UTF-8"),
        ("POST", "/v1/apply", b"x" * ((8 << 20) + 1), 400, "split"),
        (
            "POST",
            "/v1/apply",
            HOG.replace("criticality: NO", "criticality: TOP").encode(),
            400,
            "criticality",
        ),
    ],
)
def test_what_cannot_be_done_is_said(
    http: TestClient, method: str, path: str, body: bytes, code: int, word: str
) -> None:
    answer = http.request(method, path, content=body)
    assert answer.status_code == code
    assert word in answer.json()["message"]


def test_every_verb_is_in_the_openapi_document(http: TestClient) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert all("description" in verb for path in paths.values() for verb in path.values())
    assert len(paths) >= 10


@pytest.mark.parametrize(("query", "everything"), [("", False), ("?everything=true", True)])
def test_down_tells_the_daemon(http: TestClient, stops: list[bool], query: str, everything: bool) -> None:
    assert http.post(f"/v1/down{query}").status_code == 202
    assert stops == [everything]


@pytest.mark.parametrize(
    ("uid", "gid", "expected"), [(0, 0, True), (0, 65534, True), (65534, 65534, False), (65534, 0, False)]
)
def test_root_and_nobody_else_without_a_group(uid: int, gid: int, expected: bool) -> None:
    assert allowed(uid, gid, "root") == expected


def test_members_of_the_group_are_let_in() -> None:
    assert allowed(12345, 1, "daemon")
    assert not allowed(12345, 2, "daemon")


@pytest.mark.root
def test_the_socket_is_closed_to_others_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "run" / "sock"
    listening = listen(path, "daemon")
    state = path.stat()
    assert (state.st_mode & 0o777, state.st_uid, state.st_gid) == (0o660, 0, 1)
    listening.listen()
    with pytest.raises(Conflict, match="k40s down"):
        listen(path, "daemon")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted, _ = listening.accept()
        while accepted.recv(1) == b"":  # the probe above hung up
            accepted, _ = listening.accept()
            break
        assert peer_of(accepted) == (os.getuid(), os.getgid())
        accepted.close()
    listening.close()
    listen(path, "daemon").close()


def test_a_group_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="groupadd"):
        listen(tmp_path / "sock", "no-such-group")
