"""Rates as text, and a real link between two namespaces."""

import os
import subprocess
from pathlib import Path

import pytest

from lynx.errors import BadInput
from lynx.serve.link import can_shape, enter_namespace, parse_rate, remove_stale, shaped_link


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [("200mbit", 200_000_000), ("1.5Gbit", 1_500_000_000), ("64 kbit/s", 64_000), ("8000bit", 8000)],
)
def test_rates(text: str, rate_bps: int) -> None:
    assert parse_rate(text) == rate_bps


@pytest.mark.parametrize("text", ["", "200", "200mb", "-1mbit", "1bit", "9999gbit", "fast"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="link rate is"):
        parse_rate(text)


def test_an_unknown_namespace_is_said_in_a_sentence() -> None:
    with pytest.raises(BadInput, match="network namespace 'lynx-none' cannot be entered"):
        enter_namespace("lynx-none")


@pytest.mark.root
@pytest.mark.skipif(not can_shape(), reason="needs root, ip and tc")
def test_the_link_is_shaped_and_leaves_nothing() -> None:
    with shaped_link(200_000_000) as link:
        for name, address in ((link.prefill, link.prefill_address), (link.decode, link.decode_address)):
            shown = subprocess.run(
                ["tc", "-n", name, "qdisc", "show", "dev", "lynx0"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert "tbf" in shown.stdout
            assert "rate 200Mbit" in shown.stdout
            held = subprocess.run(
                ["ip", "-n", name, "addr"], capture_output=True, text=True, check=True
            ).stdout
            assert f"{address}/30" in held
    assert not Path("/run/netns", link.prefill).exists()
    assert not Path("/run/netns", link.decode).exists()


@pytest.mark.root
@pytest.mark.skipif(not can_shape(), reason="needs root, ip and tc")
def test_what_a_killed_process_left_is_removed_and_the_living_keep_theirs() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale, living = f"lynx-{gone.pid}-prefill", f"lynx-{os.getpid()}-decode"
    try:
        for name in (stale, living):
            subprocess.run(["ip", "netns", "add", name], check=True)
        assert stale in remove_stale()
        assert not Path("/run/netns", stale).exists()
        assert Path("/run/netns", living).exists()
    finally:
        subprocess.run(["ip", "netns", "delete", living], check=True)
