"""Files of superopt's own: a description in JSON, and sections of bytes that can be mapped.

    8 bytes    superopt
    4, 4, 8    the format's number; the description's crc32 and length (little-endian)
    ...        the description: {"sections": [[offset, size, crc32], ...], ...}, UTF-8
    ...        each section from a multiple of 4096 on

A reader checks every length and every checksum (zlib's crc32, against damage and not against
malice), and executes nothing.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from superopt.errors import UsageError
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.onnx_io.read.mapped_file import Backing, Region, map_file

MAGIC = b"superopt"
FORMAT_VERSION = 3
READABLE_VERSIONS = (2, 3)
_HEADER = struct.Struct("<8sIIQ")
_PAGE_BYTES = 4096
_CHUNK_BYTES = 8 << 20
SectionWriter = Callable[[BinaryIO], None]


class _ChecksumWriter:
    """A file wrapper that counts bytes and computes the checksum of what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0
        self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.size += len(view)
        self.crc = zlib.crc32(view, self.crc)
        self.file.write(view)
        return len(view)


def write_sections(
    path: Path, description: Mapping[str, Any], sections: Sequence[SectionWriter]
) -> None:
    """Write a file with this description and these sections, atomically.

    Raises UsageError if the file cannot be written.
    """
    blank = _encode_description(description, [(2**62, 2**62, 2**32 - 1)] * len(sections))
    with atomic_files() as new:
        file = new(path).file
        at = _align_to_page(_HEADER.size + len(blank))
        found = []
        for section in sections:
            file.seek(at)
            counted = _ChecksumWriter(file)
            section(counted)  # type: ignore[arg-type]  # only `write` is used
            found.append((at, counted.size, counted.crc))
            at = _align_to_page(at + counted.size)
        file.truncate(at)
        file.seek(0)
        text = _encode_description(description, found)
        file.write(_HEADER.pack(MAGIC, FORMAT_VERSION, zlib.crc32(text), len(text)) + text)


def is_section_file(path: Path) -> bool:
    """True if the file starts with the magic number of this format."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a file. crc: of its bytes."""

    path: Path
    region: Region
    crc: int

    def check(self) -> Region:
        """Return its bytes. Raises UsageError if they are damaged."""
        found, size = 0, self.region.size
        for at in range(0, size, _CHUNK_BYTES):
            found = zlib.crc32(self.region.view()[at : at + _CHUNK_BYTES], found)
        if found != self.crc:
            why = f"the checksum of a section is {found:08x}, not {self.crc:08x}"
            raise damaged_file_error(self.path, why)
        return self.region


def read_sections(path: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return the description and the sections, which are not read yet.

    Raises UsageError if the file has another format or version, or is damaged.
    """
    try:
        with path.open("rb") as file:
            backing = map_file(path, file.fileno())
    except (OSError, ValueError) as e:
        raise UsageError(f"{path} cannot be read", str(e), "check the path") from None
    view = backing.view
    if len(view) < _HEADER.size or bytes(view[:8]) != MAGIC:
        raise UsageError(
            f"{path} is not a saved model",
            "it does not begin as one",
            "name a file that `save` wrote",
        )
    _, number, crc, length = _HEADER.unpack(view[: _HEADER.size])
    if number not in READABLE_VERSIONS:
        raise UsageError(
            f"{path} is of format {number}",
            f"this version of superopt reads formats {' and '.join(map(str, READABLE_VERSIONS))}",
            "compile the model again, and save it",
        )
    text = bytes(view[_HEADER.size : _HEADER.size + length])
    if zlib.crc32(text) != crc:
        raise damaged_file_error(path, "its description does not match its checksum")
    try:
        about = json.loads(text.decode())
        places = [(int(at), int(size), int(crc)) for at, size, crc in about["sections"]]
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise damaged_file_error(path, f"its description: {e}") from None
    return about, [_find_section(path, backing, *place) for place in places]


def damaged_file_error(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is damaged", why, "compile the model again, and save it")


def _find_section(path: Path, backing: Backing, offset: int, size: int, crc: int) -> Section:
    if not 0 <= offset <= offset + size <= len(backing.view) or offset % _PAGE_BYTES:
        raise damaged_file_error(path, f"a section of {size} bytes at {offset} is beyond its end")
    return Section(path, Region(backing, offset, size), crc)


def _encode_description(
    description: Mapping[str, Any], sections: Sequence[tuple[int, int, int]]
) -> bytes:
    return json.dumps({**description, "sections": sections}).encode()


def _align_to_page(n: int) -> int:
    return -(-n // _PAGE_BYTES) * _PAGE_BYTES
