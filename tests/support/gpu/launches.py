"""Stand-ins for compiled kernels and their launches."""

from __future__ import annotations

from superopt.kernels.cuda.launch import LaunchRecord


class Compiled:
    def __init__(self, fits: bool) -> None:
        self.right = fits

    def fits_device(self) -> bool:
        return self.right


class Function:
    """One that fits with so many steps under way, or fewer; asked: with how many it was made."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[int] = []

    def warmup(self, *_: object, num_stages: int, **more: object) -> Compiled:
        self.asked.append(num_stages)
        return Compiled(num_stages <= self.most)


def launch(name: str, f: Function, stages: int) -> LaunchRecord:
    return name, f, 1, [], {"num_warps": 4, "num_stages": stages}
