"""What machine this is."""

import os
import platform

import pytest

from superopt.cost.machine import Machine, digest_names, parse_cpuinfo, processor_info, this_machine

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R)   Platinum 8481C
stepping\t: 8
flags\t\t: fpu avx2 avx512f

processor\t: 1
model name\t: something else
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


def test_an_x86_processor() -> None:
    cpu, flags = parse_cpuinfo(X86)
    assert cpu == "Intel(R) Xeon(R) Platinum 8481C (cpu family 6, model 143, stepping 8)"
    assert flags == ["fpu", "avx2", "avx512f"]


def test_an_arm_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert parse_cpuinfo(ARM) == ("aarch64 0x41 0xd40", ["fp", "asimd", "sve"])


def test_text_without_a_processor_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert parse_cpuinfo("") == ("unknown processor", [])


def test_the_digest_depends_on_the_set_of_flags() -> None:
    assert digest_names(["a", "b"]) == digest_names(["b", "a", "a"])
    assert digest_names(["a", "b"]) != digest_names(["a"])
    assert digest_names([]) == ""


def test_this_machine() -> None:
    here = this_machine()
    assert here is this_machine()
    assert 1 <= here.cores_allowed <= (os.cpu_count() or 1)
    assert here.cpu
    assert here.cpu in here.text
    assert here.flags_digest in here.kind


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_without_their_tools(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No /proc and no sysctl: a name of some kind, and nothing raised."""
    monkeypatch.setattr("superopt.cost.machine._read_text", lambda path: None)
    monkeypatch.setattr("superopt.cost.machine.sys.platform", system)
    monkeypatch.setattr("superopt.cost.machine._sysctl", lambda name: "")
    monkeypatch.setattr("superopt.cost.machine.processor_info", processor_info.__wrapped__)
    here = this_machine.__wrapped__()
    assert here.cpu
    assert (here.flags_digest, here.memory) == ("", 0)


def test_one_line_for_reports() -> None:
    text = Machine("A CPU", "0123", 2, 3 << 29, "Linux 6").text
    assert text == "A CPU, 2 cores, 1.5 GiB, Linux 6"
    assert Machine("A CPU", "", 1, 0, "Linux 6").text == "A CPU, 1 core, Linux 6"
