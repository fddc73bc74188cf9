"""A request for GPU code is judged by what becomes of it, before anything is compiled."""

from __future__ import annotations

import pytest

from headrace.pipeline.architectures import nvcc_fault, parse_code, request_fault
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pin, load_pins

PINS = load_pins(Layout.find().pins)
CUDA_13 = ["compute_75", "compute_90", "compute_100", "compute_103", "compute_120"]


def asked(project: str, request: str, *codes: str) -> Pin:
    """Return a pin whose build is asked for `request` and must give one of `codes`."""
    pin = PINS.get(project)
    return pin.model_copy(update={"compile_for": request, "device_code": codes or pin.device_code})


def fault(pin: Pin) -> str:
    found = request_fault(pin)
    return f"expected {found.expected}, found {found.found}" if found else ""


@pytest.mark.parametrize(
    ("code", "devices"),
    [
        ("sm_103a", {103}),
        ("sm_100a", {100}),
        ("sm_100f", {100, 103, 107}),
        ("sm_103f", {103, 107}),
        ("sm_100", {100, 103, 107}),
        ("sm_90a", {90}),
        ("sm_80", {80, 86, 89}),
        ("sm_120f", {120, 121}),
        ("compute_100f", {100, 103, 107}),
        ("compute_103a", {103}),
        ("compute_90", {90, 100, 103, 107, 110, 120, 121}),
    ],
)
def test_code_runs_on_its_gpu_its_family_or_what_comes_after(code: str, devices: set[int]) -> None:
    gpus = (80, 86, 89, 90, 100, 103, 107, 110, 120, 121)
    assert {gpu for gpu in gpus if parse_code(code).runs_on(gpu)} == devices
    assert str(parse_code(code)) == code


@pytest.mark.parametrize("name", ["", "sm_", "sm_103b", "103a", "gfx942", "sm_103a ", "SM_103"])
def test_what_is_no_code_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected GPU code"):
        parse_code(name)


def test_the_committed_requests_stand() -> None:
    compiled = [pin for pin in PINS.projects.values() if pin.compile_for]
    assert [(pin.id, pin.compile_for) for pin in compiled] == [
        ("lmcache", "10.3a"),
        ("flashinfer", "10.3a"),
    ]
    assert [fault(pin) for pin in compiled] == ["", ""]
    assert [nvcc_fault(pin, (13, 0), CUDA_13) for pin in compiled] == [None, None]


@pytest.mark.parametrize(
    ("project", "request_", "complaint"),
    [
        # What vLLM's build makes of it, without a word.
        ("vllm", "10.3", "'10.3', of which it makes 10.0f without a word"),
        ("vllm", "10.3a", "'10.3a', of which it makes 10.0f without a word"),
        ("flashinfer", "10.3", "'10.3', of which it makes 10.3a without a word"),
        ("flashinfer", "12.0", "'12.0', of which it makes 12.0f without a word"),
        # What SM103 does not run.
        ("lmcache", "10.0a", "'10.0a', whose code runs on SM100 alone"),
        ("vllm", "10.0a", "'10.0a', whose code runs on SM100 alone"),
        ("flashinfer", "10.0a", "'10.0a', whose code runs on SM100 alone"),
        ("lmcache", "10.3a;10.0a", "'10.0a', whose code runs on SM100 alone"),
        ("lmcache", "9.0", "'9.0', an older GPU's"),
        ("lmcache", "12.0", "'12.0', a newer GPU's"),
        # What the build does not know.
        ("lmcache", "Blackwell", "knows, found 'Blackwell'"),
        ("lmcache", "native", "knows, found 'native'"),
        ("lmcache", "10.0f", "knows, found '10.0f'"),
        ("lmcache", "sm_103a", "knows, found 'sm_103a'"),
        ("flashinfer", "10.3a+PTX", "knows, found '10.3a+PTX'"),
        ("lmcache", "", "such as 10.3a, found none"),
        ("lmcache", " ", "such as 10.3a, found none"),
        # Where there is a separator too many, or one of another build, the build finds such a word.
        ("lmcache", "10.3a;", "knows, found '' in '10.3a;'"),
        ("lmcache", " 10.3a", "knows, found '' in ' 10.3a'"),
        ("lmcache", "10.0; 10.3a", "knows, found '' in '10.0; 10.3a'"),
        ("lmcache", "10.3a\t10.0", "knows, found '10.3a\t10.0'"),
        ("lmcache", "10.3a\u00a0", "knows, found '10.3a\u00a0'"),
        ("lmcache", "\u0661\u0660.3a", "knows, found '\u0661\u0660.3a'"),
        ("flashinfer", "10.3a;10.3f", "knows, found '10.3a;10.3f'"),
        ("flashinfer", "10.3a ", "knows, found '' in '10.3a '"),
        ("torch", "10.3a", "one of lmcache, flashinfer, vllm, found 'torch'"),
        # It would run, and is not what the image's check looks for.
        ("flashinfer", "10.0f", "a request for sm_103a, which device-code promises"),
    ],
)
def test_a_request_that_cannot_stand_is_named(project: str, request_: str, complaint: str) -> None:
    assert complaint in fault(asked(project, request_))


@pytest.mark.parametrize(
    ("project", "request_"),
    [
        ("vllm", "10.0f"),
        ("lmcache", "10.3"),
        ("lmcache", "10.0"),
        ("lmcache", "10.0 10.3a"),
        ("lmcache", "10.0;10.3a"),
        ("flashinfer", "10.3a 10.3f"),
        ("lmcache", "10.0+PTX"),
    ],
)
def test_a_request_that_gives_code_for_sm103_stands(project: str, request_: str) -> None:
    assert fault(asked(project, request_)) == ""


def test_ptx_counts_where_machine_code_does_not() -> None:
    assert fault(asked("lmcache", "9.0", "compute_90")) != ""
    assert fault(asked("lmcache", "9.0+PTX", "compute_90")) == ""
    assert fault(asked("lmcache", "9.0a+PTX", "compute_90a")) != ""


@pytest.mark.parametrize(
    ("request_", "release", "known", "complaint"),
    [
        ("10.3a", (12, 8), ["compute_90", "compute_100"], "compute_103a", ),
        ("10.3a;12.1", (13, 0), CUDA_13, "compute_121"),
        ("10.0f", (12, 8), ["compute_90", "compute_100"], "compute_100f"),
    ],
)  # fmt: skip
def test_an_nvcc_that_does_not_know_it_is_named(
    request_: str, release: tuple[int, int], known: list[str], complaint: str
) -> None:
    found = nvcc_fault(asked("lmcache", request_), release, known)
    assert found is not None
    assert found.expected == f"an nvcc that knows {complaint}"
    assert found.found == f"release {release[0]}.{release[1]}, which does not"
