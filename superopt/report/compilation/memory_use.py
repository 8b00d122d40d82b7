"""The memory of a compiled model: data and text."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.report.formatting import phrases
from superopt.report.formatting.table import join_lines, table


@dataclass(frozen=True, slots=True)
class ProgramMemory:
    """The memory of a program, in bytes.

    Attributes:
        name: The sizes that it is for.
        weight_bytes: Of the packed weights that it reads; programs share them.
        code_bytes: Of its object files.
        contexts: The number of contexts: memory for a call each, idle or in use.
        memory_bytes: Of intermediate results, in all contexts.
        workspace_bytes: Of the workspaces of threads, in all contexts.
        output_bytes: Of arrays that are kept for further results.
    """

    name: str
    weight_bytes: int
    code_bytes: int
    contexts: int
    memory_bytes: int
    workspace_bytes: int
    output_bytes: int

    @property
    def own_bytes(self) -> int:
        """The bytes that no other program shares."""
        return self.code_bytes + self.memory_bytes + self.workspace_bytes + self.output_bytes


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a compiled model, in bytes. `str` of it is a table.

    Attributes:
        programs: Each with its own memory.
        weight_bytes: Of the packed weights of all programs, each counted once.
        mapped_bytes: Of these, those that are mapped from the cache on disk, whose pages processes
            share.
        model_bytes: Of the model itself, if it is held in memory.
        model_file_bytes: Of the model's files, if they are mapped; not part of the total, as the
            system drops their pages when it needs memory.
        sessions: The number of sessions in onnxruntime, whose memory is not known.
    """

    programs: tuple[ProgramMemory, ...]
    weight_bytes: int
    mapped_bytes: int
    model_bytes: int
    model_file_bytes: int
    sessions: int

    @property
    def total_bytes(self) -> int:
        """The sum of weights, the model in memory, and what each program has of its own."""
        return self.weight_bytes + self.model_bytes + sum(p.own_bytes for p in self.programs)

    def __repr__(self) -> str:
        programs = phrases.count_text(len(self.programs), "program")
        return f"<MemoryUse {phrases.size_text(self.total_bytes)}, {programs}>"

    def __str__(self) -> str:
        size = phrases.size_text
        head = ("program", "weights", "code", "contexts", "memory", "workspaces", "outputs")
        rows = [
            (
                phrases.printable(p.name), size(p.weight_bytes), size(p.code_bytes),
                str(p.contexts), size(p.memory_bytes), size(p.workspace_bytes),
                size(p.output_bytes),
            )
            for p in self.programs
        ]  # fmt: skip
        lines = [f"{size(self.total_bytes)} in {phrases.count_text(len(rows), 'program')}"]
        if rows:
            lines += table([head, *rows], max_rows=len(rows) + 1, numeric_columns=range(1, 7))
            mapped = f", {size(self.mapped_bytes)} of them mapped from the cache on disk"
            lines.append(
                f"weights of all programs, each counted once: {size(self.weight_bytes)}"
                f"{mapped if self.mapped_bytes else ''}"
            )
        if self.model_bytes:
            lines.append(f"the model in memory: {size(self.model_bytes)}")
        if self.model_file_bytes:
            lines.append(f"the model's files, mapped, not counted: {size(self.model_file_bytes)}")
        if self.sessions:
            count = phrases.count_text(self.sessions, "session")
            lines.append(f"{count} in onnxruntime, whose memory is not known")
        return join_lines(lines)
