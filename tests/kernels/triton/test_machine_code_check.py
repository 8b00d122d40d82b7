"""Machine code that reads what nothing has written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from superopt.kernels.runtime import gpu_program
from superopt.kernels.runtime.gpu_program import fit_to_device
from superopt.kernels.triton import machine_code_check
from tests.support.gpu.launches import Compiled, launch

# What ptxas 12.8 made of two products in a row, and 12.9: UR9 is nowhere written.
HEAD = """
        /*0330*/                   UMOV UR4, 0x400 ;
        /*03a0*/                   ULEA UR8, UR4, UR4, 0x18 ;
        /*03e0*/                   USHF.R.U32.HI UR4, URZ, 0x4, UR8 ;
        /*0400*/                   UMOV UR7, 0x40000040 ;
        /*0410*/                   UMOV UR6, UR4 ;
        /*06d0*/                   HGMMA.64x64x16.F32 R24, R56, gdesc[UR4].tnspB, RZ, !UPT ;
"""
WRONG = HEAD + "        /*1af0*/                   UIADD3 UR4, UP0, UR9, 0x40, URZ ;\n"
RIGHT = HEAD + "        /*1af0*/              @!P0 UIADD3 UR4, UP0, UR8, 0x40, URZ ;\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (RIGHT, 0),
        (WRONG, 1),
        ("/*0010*/ ULDC.64 UR4, c[0x0][0x208] ; /*0020*/ LDG.E R0, desc[UR4][R2.64] ;", 0),
        ("/*0010*/ ULDC UR4, c[0x0][0x208] ; /*0020*/ UIADD3 UR6, UR5, UR4, URZ ;", 1),
        ("/*0010*/ UIMAD.WIDE.U32 UR6, URZ, 0x3, URZ ; /*0020*/ UIMAD UR7, UR7, 0x3, UR6 ;", 0),
        ("/*0010*/ UMOV UR4, 0x1 ; /*0020*/ HGMMA R24, R56, gdesc[UR4].tnspB, RZ, !UPT ;", 1),
        ("/*0010*/ STS.128 [R31+UR8], R12 ;", 1),
        ("/*0010*/ @P1 R2UR.OR P0, UR7, R5 ; /*0020*/ UBLKPF.L2 [UR7], 0x8 ;", 0),
    ],
)
def test_what_is_read_before_it_is_written(text: str, found: int) -> None:
    assert len(list(machine_code_check.unwritten_register_reads(text))) == found


class Machine(Compiled):
    def __init__(self, warps: int) -> None:
        super().__init__(True)
        self.asm = {"ptx": "wgmma.fence wgmma.fence", "cubin": b"", "warps": warps}


class Function:
    def warmup(self, *_: object, num_warps: int, **more: object) -> Machine:
        return Machine(num_warps)


@pytest.mark.parametrize(("wrong", "taken"), [((), 4), ((4,), 8)])
def test_other_warps_where_code_is_wrong(
    monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, ...], taken: int
) -> None:
    monkeypatch.setattr(gpu_program, "is_sound", lambda k: k.asm["warps"] not in wrong)
    name, function, *rest, how = launch("a", Function(), 3)  # type: ignore[arg-type]
    found, kernels = fit_to_device([(name, function, *rest, {**how, "num_warps": 4})])  # type: ignore[arg-type]
    assert found[0][-1]["num_warps"] == taken
    assert [k.asm["warps"] for k in kernels.values()] == [taken]


def test_what_is_never_right_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_program, "is_sound", lambda k: False)
    name, function, *rest, how = launch("a", Function(), 3)  # type: ignore[arg-type]
    some: Any = [(name, function, *rest, {**how, "num_warps": 4})]
    with pytest.raises(NotImplementedError, match="a: Triton's compiler generates wrong code"):
        fit_to_device(some)


# What ptxas 12.8 and 12.9 leave of a product whose accumulators a bitwise operation reads first.
DROPPED = "        /*1910*/                   HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT, gsb0 ;\n"
KEPT = "        /*1910*/                   HGMMA.64x64x8.F32.TF32 R24, gdesc[UR8], R24, gsb0 ;\n"


@pytest.mark.parametrize(
    ("text", "products", "right"),
    [(KEPT, 1, True), (DROPPED, 1, False), (KEPT + DROPPED, 1, False), (DROPPED, 0, True),
     (WRONG, 1, True), (WRONG, 2, False), (RIGHT, 2, True)],
)  # fmt: skip
def test_which_machine_code_is_sound(
    text: str, products: int, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code with wgmma is disassembled; registers are followed where there are two products."""
    monkeypatch.setattr(machine_code_check, "_disassembler", lambda: "nvdisasm")
    done = SimpleNamespace(stdout=text)
    monkeypatch.setattr(machine_code_check.subprocess, "run", lambda *_, **__: done)
    kernel = Machine(4)
    kernel.asm["ptx"] = "wgmma.fence " * products
    assert machine_code_check.is_sound(kernel) == right


def test_nothing_to_disassemble_is_sound() -> None:
    assert machine_code_check.is_sound(object())
