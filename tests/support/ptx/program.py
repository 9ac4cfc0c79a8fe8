"""Reads what Triton compiles a kernel to: the text of PTX becomes instructions of `machine.hpp`."""

from __future__ import annotations

import ctypes
import linecache
import re
import struct
from functools import cached_property

from .timing import cost

SPECIAL = ("%tid.x", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z")
SHARED = 1024  # where shared memory begins, as in machine.hpp
MOST_INSTRUCTIONS = 2**16  # what the machine remembers the place of an access in
WIDTHS = {"pred": 4, "b8": 1, "b16": 2, "b32": 4, "b64": 8, "f32": 4, "f64": 8}
WIDTHS |= {f"{sign}{8 * size}": size for sign in "us" for size in (1, 2, 4, 8)}

ENTRY = re.compile(r"\.entry (\w+)\((.*?)\)\s*(?:\.\w+ \d+\s*)*\{(.*?)\n\}", re.DOTALL)
STATEMENT = re.compile(r"(?:@(!?)(%p\d+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
OPERAND = re.compile(r"\s*(\{[^}]*\}|\[[^]]*\]|[^,]+?)\s*(?:,|$)")
ACCESS = re.compile(r"(ld|st)(?:\.volatile)?\.(global|shared|param)(?:::cta)?(?:\.v([24]))?\.([bsuf]\d+)$")
MATRIX = re.compile(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x([124])\.shared\.b16$")
ADDRESS = re.compile(r"\[\s*([%$\w.]+)\s*(?:\+\s*(-?\d+))?\s*\]$")
LINE = re.compile(r"\.loc\s+(\d+) (\d+) (\d+)(?:, function_name [^,]+, inlined_at (\d+) (\d+) (\d+))?")


class PTXError(RuntimeError):
    """A kernel did what it mustn't, or it has an instruction that isn't known here."""


def int64s(*names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, ctypes.c_int64) for name in names)


class Instruction(ctypes.Structure):
    _fields_ = (
        *int64s("operation", "guard", "negated", "target", "base", "offset"),
        *int64s("width", "count", "data_width", "is_signed", "is_asked"),
        *int64s("pipe", "slots", "busy", "latency", "results"),
        ("registers", ctypes.c_int64 * 6),
    )


class Constant(ctypes.Structure):
    _fields_ = int64s("index", "width", "value")


class Code:
    """A kernel's instructions.

    Args:
        text: of PTX with one kernel.
        operations: number and operands of the instructions that the machine knows, by name.

    Raises:
        PTXError: an instruction isn't known, or there are too many.
    """

    def __init__(self, text: str, operations: dict[str, list[tuple[int, str]]]) -> None:
        self.text, self.operations = text, operations
        found = ENTRY.search(text)
        if found is None or text.count(".entry") != 1:
            raise PTXError("not a text of PTX with one kernel")
        self.parameters: list[tuple[int, int]] = []  # bytes of each, and where it is
        self.registers: dict[str, tuple[int, int]] = {name: (number, 4) for number, name in enumerate(SPECIAL)}
        self.symbols = {name: SHARED for name in re.findall(r"\.extern \.shared .*?(\w+)\[\]", text)}
        self.constants: dict[tuple[int, int], int] = {}
        self.num_registers = len(SPECIAL)
        self.shared_granule = 2
        place = 0
        for type_, name in re.findall(r"\.param \.(\w+) .*?(\w+)\s*(?:,|$)", found[2]):
            place += -place % WIDTHS[type_]
            self.parameters.append((WIDTHS[type_], place))
            self.symbols[name] = place
            place += WIDTHS[type_]
        self.instructions: list[Instruction] = []
        self.statements: list[str] = []  # of each instruction
        self.sources: list[str] = []  # of each instruction, its line of .loc
        self._read(found[3])
        if len(self.instructions) >= MOST_INSTRUCTIONS:
            raise PTXError(f"{len(self.instructions)} instructions")
        self.code = (Instruction * len(self.instructions))(*self.instructions)
        for at, instruction in enumerate(self.code):
            if self.statements[at].startswith("bar."):
                instruction.is_asked = "debug_barrier" in self._line(at)
        self.filled = (Constant * len(self.constants))(*((at, *key) for key, at in self.constants.items()))

    def _read(self, body: str) -> None:
        labels: dict[str, int] = {}
        branches: list[tuple[Instruction, str]] = []
        source, unfinished, is_inline = "", "", False
        for line in body.splitlines():
            if "inline asm" in line:
                is_inline = "begin inline asm" in line
            line = line.partition("//")[0].strip()
            if line.startswith(".loc"):
                source = source if is_inline else line  # LLVM counts the lines of such code as if they were the kernel's
            elif line.endswith(":"):
                labels[line[:-1]] = len(self.instructions)
            elif line.startswith(".reg"):
                _, type_, names = line.rstrip(";").split(None, 2)
                self._declare(type_[1:], names)
            elif line and not line.startswith(".pragma"):
                *ended, unfinished = f"{unfinished} {line}".split(";")
                for statement in filter(None, map(str.strip, ended)):
                    self.statements.append(statement)
                    self.sources.append(source)
                    self._instruction(statement, branches)
        self.statements.append("(end)")
        self.sources.append(source)
        self._instruction("ret", branches)
        for instruction, label in branches:
            instruction.target = labels[label]

    def _declare(self, type_: str, names: str) -> None:
        for name in map(str.strip, names.split(",")):
            stem, _, count = name.rstrip(">").partition("<")
            for number in range(int(count)) if count else [""]:
                self.registers[f"{stem}{number}"] = self._new(WIDTHS[type_])

    def _new(self, width: int) -> tuple[int, int]:
        self.num_registers += 1
        return self.num_registers - 1, width

    def _instruction(self, statement: str, branches: list[tuple[Instruction, str]]) -> None:
        negated, guard, name, rest = STATEMENT.match(statement).groups()
        made = Instruction(guard=self.registers[guard][0] if guard else -1, negated=bool(negated), base=-1)
        made.registers[:] = [-1] * 6
        name = re.sub(r"^(add|sub|mul)\.rn\.", r"\1.", name)  # ".rn" says that it mustn't be fused with another
        operands = OPERAND.findall(rest)
        access, matrix = ACCESS.match(name), MATRIX.match(name)
        if access:
            kind, space, count, type_ = access.groups()
            made.count, made.width, name = int(count or 1), WIDTHS[type_], f"{kind}.{space}"
            data, address = operands if kind == "ld" else reversed(operands)
            made.is_signed = type_.startswith("s")
            parts = [part.strip() for part in data.strip("{} ").split(",")]
            # Registers may be wider than what is loaded.
            made.data_width = max([made.width, 2, *(self.registers[part][1] for part in parts if part in self.registers)])
            for number, part in enumerate(parts):
                made.registers[number] = self._operand(part, made.data_width, statement)
            made.base, made.offset = self._address(address, statement)
            if space == "shared":
                self.shared_granule = min(self.shared_granule, made.width.bit_length() - 1)
        elif matrix:
            name, made.count = f"{matrix[1]}matrix", int(matrix[2])
            data, address = operands if matrix[1] == "ld" else reversed(operands)
            for number, part in enumerate(data.strip("{} ").split(",")):
                made.registers[number] = self._operand(part, 4, statement)
            made.registers[4], made.registers[5] = self._constant(-1, 4), self._new(4)[0]
            made.base, made.offset = self._address(address, statement)
        elif name in ("bra", "bra.uni"):
            name = "bra"
            branches.append((made, operands[0]))
        elif name == "bar.sync" and operands == ["0"]:
            pass
        elif name == "bar.warp.sync":
            made.registers[4] = self._operand(operands[0], 4, statement)
        elif name != "ret":
            if name.startswith("mov.b") and any("{" in operand for operand in operands):
                name = ("unpack" if "{" in operands[0] else "pack") + name[3:]
                operands = [part.strip() for operand in operands for part in operand.strip("{} ").split(",")]
            made.operation, sizes = self._known(name, operands, statement)
            for number, (operand, size) in enumerate(zip(operands, sizes)):
                made.registers[number] = self._operand(operand, size, statement)
            if ".sync." in name:  # which lanes take part comes last
                made.registers[4] = made.registers[len(sizes) - 1]
        made.operation = made.operation or self.operations[name][0][0]
        made.pipe, made.slots, made.busy, made.latency = cost(name)
        made.results = {"ld": made.count, "ldmatrix": made.count, "unpack": 2}.get(name.split(".")[0], 1)
        made.results *= not re.match("st|bra|bar|ret", name)
        self.instructions.append(made)

    def _known(self, name: str, operands: list[str], statement: str) -> tuple[int, list[int]]:
        """Return the number of an operation, and its operands' sizes: some take registers of several."""
        for operation, widths in self.operations.get(name, []):
            sizes = [4 if width == "p" else int(width) for width in widths]
            has = [self.registers.get(operand, (0, size))[1] for operand, size in zip(operands, sizes)]
            if len(operands) == len(sizes) and has == sizes:
                return operation, sizes
        raise PTXError(f"no instruction that is known here: {statement}")

    def _operand(self, text: str, width: int, statement: str) -> int:
        text = text.strip()
        if text == "_":
            return -1
        if text in self.registers:
            return self.registers[text][0]
        if text in self.symbols:
            return self._constant(self.symbols[text], width)
        if re.match(r"0[fF][0-9A-Fa-f]{8}$", text):
            bits = int(text[2:], 16)
            if width == 8:
                bits = struct.unpack("<q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]))[0]
            return self._constant(bits, width)
        if re.match(r"0[dD][0-9A-Fa-f]{16}$", text):
            return self._constant(int(text[2:], 16), width)
        if re.match(r"-?(0x[0-9A-Fa-f]+|\d+)U?$", text):
            return self._constant(int(text.rstrip("U"), 0), width)
        raise PTXError(f"no operand that is known here, {text}: {statement}")

    def _constant(self, value: int, width: int) -> int:
        key = (width, (value + 2**63) % 2**64 - 2**63)
        if key not in self.constants:
            self.constants[key] = self._new(width)[0]
        return self.constants[key]

    def _address(self, text: str, statement: str) -> tuple[int, int]:
        found = ADDRESS.match(text)
        if found is None:
            raise PTXError(f"no address that is known here, {text}: {statement}")
        name, offset = found[1], int(found[2] or 0)
        return (-1, self.symbols[name] + offset) if name in self.symbols else (self.registers[name][0], offset)

    @cached_property
    def _paths(self) -> dict[str, str]:
        return dict(re.findall(r'\.file\s+(\d+) "([^"]*)"', self.text))

    def _line(self, at: int) -> str:
        """Return the line of Python that an instruction comes from."""
        found = LINE.match(self.sources[at])
        return linecache.getline(self._paths[found[1]], int(found[2])) if found else ""

    def source(self, at: int) -> str:
        """Return where in Python an instruction comes from, with what called that: `gpu.py:339 < gpu.py:487`."""
        places, line, seen = [], self.sources[at], set()
        while (found := LINE.match(line)) and line not in seen:
            seen.add(line)
            file, number, _, *caller = found.groups()
            places.append(f"{'/'.join(self._paths[file].split('/')[-2:])}:{number}")
            if caller[0] is None:
                break
            begin = re.compile(r"\.loc\s+{} {} {}(?:,|$)".format(*caller))
            earlier = [each for each in self.sources[: at + 1] if begin.match(each)]
            line = earlier[-1] if earlier else ".loc {} {} {}".format(*caller)
        return " < ".join(places)
