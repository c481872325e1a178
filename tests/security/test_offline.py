"""The suite runs without a network: nothing that is tested can depend on one."""

import os
import socket
import subprocess
import sys

import pytest


def test_connections_to_other_machines_are_refused() -> None:
    with (
        socket.socket() as there,
        pytest.raises(PermissionError, match=r"a test tried to connect to 192\.0\.2\.1"),
    ):
        there.connect(("192.0.2.1", 80))


def test_loopback_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass


@pytest.mark.skipif("ASSAY_OFFLINE" not in os.environ, reason="not run by .ci/offline")
def test_the_continuous_run_has_no_other_interface_than_loopback() -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"]


@pytest.mark.skipif("ASSAY_OFFLINE" not in os.environ, reason="not run by .ci/offline")
def test_child_processes_have_no_network_either() -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "Network is unreachable" in found.stderr
