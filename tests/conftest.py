"""Fixtures of the whole suite: tiny seeded models, the reference data, runtime shape checks."""

import functools
import gc
import ipaddress
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from type_checks import begin_a_test, install_type_checks, no_type_checks


# What is loaded before the first test stays to the end: the collector need not look at it, then or later.
gc.disable()

# Every annotation of the package is checked at run time, so ordinary tests are type tests too. The hook
# must stand before the first import of a module of the package.
install_type_checks()

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch import nn


REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ASSAY_SHARED", REPOSITORY.parent / "shared")).resolve()

torch.set_num_threads(1)

# A shell that runs the suite in the background ignores SIGINT, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["chromium", "postgres_server"]


def _refuse_the_network(event: str, arguments: tuple[object, ...]) -> None:
    """No test speaks to another machine; loopback and sockets that are files are allowed."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if not isinstance(address, tuple):
        return
    host = str(address[0])
    try:
        own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = host in ("localhost", "")
    if not own:
        raise PermissionError(f"a test tried to connect to {host}: tests run without a network")


if not os.environ.get("ASSAY_NETWORK_TESTS"):
    sys.addaudithook(_refuse_the_network)

# Files that take longest go first, in this order, so that no process is left with one of them in the end.
LONG = (
    "test_docs.py",
    "test_cli_sweep.py",
    "test_frozen.py",
    "test_audit.py",
    "test_cli_circuits.py",
    "test_cli_images.py",
    "test_cli_json.py",
    "test_workers.py",
    "test_gate_rates.py",
    "test_in_chromium.py",
    "test_pages.py",
    "test_examples.py",
    "test_entry_points.py",
    "test_service_monitor.py",
    "test_cli.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))
    gc.collect()
    gc.freeze()
    gc.enable()


# The slow cases, and more examples of a property that names no number of its own.
THOROUGH = bool(os.environ.get("ASSAY_THOROUGH"))
EXAMPLES = 500 if THOROUGH else 40
hypothesis.settings.register_profile("local", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, max_examples=EXAMPLES
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_configure(config: pytest.Config) -> None:
    if THOROUGH:
        config.option.markexpr = config.option.markexpr.replace("not slow and ", "")


def pytest_runtest_setup() -> None:
    begin_a_test()


def pytest_report_header() -> str:
    state = "found" if SHARED.is_dir() else "ABSENT: tests against reference data are skipped"
    return f"reference data: {SHARED} ({state}; ASSAY_SHARED moves it)"


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """A function from a path inside the reference data to the file; skips the test where it is missing."""

    def find(relative: str) -> Path:
        path = SHARED / relative
        if not path.exists():
            pytest.skip(f"reference data absent: {path} (set ASSAY_SHARED)")
        return path

    return find


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switches the runtime type checks off: for tests of the errors a user gets, who has no such checks."""
    with no_type_checks():
        yield


# ------------------------------------------------------------------------------------------- tiny models


SIZES: dict[str, Any] = {
    "vocab_size": 61,  # prime: a transposed or flattened vocabulary axis cannot pass unnoticed
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 40}
# Model type and entries of the configuration.
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"num_attention_heads": 3}),
    "neox": ("gpt_neox", {"num_attention_heads": 3, "intermediate_size": 48}),
    "llama": ("llama", GROUPED),
}


def build_tiny(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """A fresh two-layer model of `family` ("gpt2", "neox", "llama"), in evaluation mode.

    Biases and norm weights are moved off their defaults, so that forgetting one changes the output.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, entries = TINY[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(model_type, **SIZES, **entries)
        module: nn.Module = AutoModelForCausalLM.from_config(config).to(torch.float64)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return module.to(dtype).eval()


_shared_tiny = functools.cache(build_tiny)


@pytest.fixture(scope="session")
def tiny_module() -> Callable[..., nn.Module]:
    """`tiny_module(family, dtype=torch.float32, seed=0)`: shared between tests, do not change it."""
    return _shared_tiny


@pytest.fixture(scope="session", params=sorted(TINY))
def family(request: pytest.FixtureRequest) -> str:
    """Each text family in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def module64(family: str) -> nn.Module:
    """The tiny float64 model of each family in turn."""
    return _shared_tiny(family, torch.float64)


@pytest.fixture(scope="session")
def module32(family: str) -> nn.Module:
    """The tiny float32 model of each family in turn."""
    return _shared_tiny(family, torch.float32)


@pytest.fixture(scope="session")
def gpt2_tiny() -> nn.Module:
    return _shared_tiny("gpt2", torch.float32)


@pytest.fixture(scope="session")
def gpt2_tiny64() -> nn.Module:
    return _shared_tiny("gpt2", torch.float64)


@pytest.fixture(scope="session")
def neox_tiny64() -> nn.Module:
    return _shared_tiny("neox", torch.float64)


@pytest.fixture(scope="session")
def llama_tiny64() -> nn.Module:
    return _shared_tiny("llama", torch.float64)
