#!/usr/bin/env python3
"""Translates the PTX of our kernels to C++ that machine.h runs on the host.

    translate.py KERNELS.ptx OUT.cpp [KERNEL ...]

A kernel becomes a function, an instruction a statement, a register a local variable that holds its bits. An unknown
instruction, directive or operand ends the program with an error: nothing is guessed. Instructions that touch memory or
order threads are numbered; tests name the place of a fault, or of a mutation, by this number.
"""

from __future__ import annotations

import pathlib
import re
import sys

CPP = {
    f"{kind}{bits}": f"{name}{bits}_t"
    for bits in (8, 16, 32, 64)
    for kind, name in zip("ubs", ("uint", "uint", "int"), strict=True)
}
CPP |= {"f32": "float", "f64": "double", "pred": "bool"}
INTEGER, BITS, ANY = r"[us](?:16|32|64)", r"pred|b16|b32|b64", r"[usbf](?:8|16|32|64)"
SPECIAL = {
    "%tid.x": "t.index",
    "%ntid.x": "t.threads()",
    "%ctaid.x": "t.block_index()",
    "%nctaid.x": "t.blocks()",
    "%dynamic_smem_size": "t.shared_bytes()",
    "%globaltimer": "t.now()",
}

# Opcode (group 1: the type of the operands), C++ of the operands {0}, {1}, …; {T}: the type in C++. "wide": the result
# has twice the bits. Operands in `COUNTS` are of 32 bits whatever the type, those in `PREDICATES` are predicates.
ARITHMETIC = [
    (rf"add\.({INTEGER})", "ptx::add<{T}>({0}, {1})"),
    (rf"sub\.({INTEGER})", "ptx::sub<{T}>({0}, {1})"),
    (rf"mul\.lo\.({INTEGER})", "ptx::mul<{T}>({0}, {1})"),
    (rf"mad\.lo\.({INTEGER})", "ptx::add<{T}>(ptx::mul<{T}>({0}, {1}), {2})"),
    (r"mul\.wide\.([us](?:16|32))", "ptx::mul_wide<{T}>({0}, {1})"),
    (rf"div\.({INTEGER})", "ptx::div<{T}>({0}, {1})"),
    (rf"rem\.({INTEGER})", "ptx::rem<{T}>({0}, {1})"),
    (rf"min\.({INTEGER})", "std::min<{T}>({0}, {1})"),
    (rf"max\.({INTEGER})", "std::max<{T}>({0}, {1})"),
    (r"add\.rn\.(f32|f64)", "ptx::rounded({0} + {1})"),
    (r"sub\.rn\.(f32|f64)", "ptx::rounded({0} - {1})"),
    (r"mul\.rn\.(f32|f64)", "ptx::rounded({0} * {1})"),
    (r"div\.rn\.(f32|f64)", "ptx::rounded({0} / {1})"),
    # Where no rounding is named, an assembler may contract a product and a sum: see Kernel.contracted().
    (r"add\.(f32|f64)", "ptx::rounded({0} + {1})"),
    (r"sub\.(f32|f64)", "ptx::rounded({0} - {1})"),
    (r"mul\.(f32|f64)", "ptx::rounded({0} * {1})"),
    (r"fma\.rn\.(f32|f64)", "ptx::rounded(std::fma({0}, {1}, {2}))"),
    (rf"and\.({BITS})", "{0} & {1}"),
    (rf"or\.({BITS})", "{0} | {1}"),
    (rf"xor\.({BITS})", "{0} ^ {1}"),
    (r"not\.(pred)", "!{0}"),
    (r"not\.(b16|b32|b64)", "~{0}"),
    (r"neg\.(s16|s32|s64)", "ptx::sub<{T}>(0, {0})"),
    (r"neg\.(f32|f64)", "-{0}"),
    (r"shl\.(b16|b32|b64)", "ptx::shl<{T}>({0}, {1})"),
    (rf"shr\.({ANY})", "ptx::shr<{T}>({0}, {1})"),
    (r"shf\.l\.wrap\.(b32)", "ptx::shf_l_wrap({0}, {1}, {2})"),
    (r"bfi\.(b32|b64)", "ptx::bfi<{T}>({0}, {1}, {2}, {3})"),
    (rf"mov\.(pred|{ANY})", "{0}"),
    (r"cvta(?:\.to)?\.global\.(u64)", "{0}"),
    (rf"selp\.({ANY})", "{2} ? {0} : {1}"),
]
COUNTS = {("shl", 1), ("shr", 1), ("bfi", 2), ("bfi", 3), ("shf", 2)}
PREDICATES = {("selp", 2)}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
ATOMICS = {"add": "ptx::add<{T}>(old, {0})", "max": "std::max<{T}>(old, {0})"}
SPACES = {".param": "kParameter", ".shared": "kShared", ".global": "kGlobal", None: "kGlobal"}


class UnknownError(Exception):
    pass


def split(text: str) -> list[str]:
    return [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", text)]


def bits_of(type_: str) -> int:
    return int(type_[1:])


class Tables:
    """What the machine reports: numbered places, and basic blocks with their numbers of instructions."""

    def __init__(self) -> None:
        self.places = [(0, "", "")]  # 0: no place
        self.blocks: list[int] = []


class Kernel:
    """The body of one kernel, as lines of C++."""

    def __init__(self, name: str, tables: Tables, shared: dict[str, int]) -> None:
        self.name, self.tables = name, tables
        self.parameter, self.parameter_bytes, self.most_threads = "", 0, 0
        self.symbols = dict(shared)  # names of memory, and where it begins in its space
        self.classes: dict[str, str] = {}  # of registers: the C++ type of %r…
        self.registers: dict[str, str] = {}
        self.scoped: dict[str, str] = {}  # registers of a scope of one line
        self.products: dict[str, str] = {}  # registers of a basic block, and the factors of their value
        self.lines: list[str] = []
        self.is_new_block, self.line = True, 0

    # -- operands --

    def register(self, text: str) -> str:
        if text in self.scoped:
            return self.scoped[text]
        match = re.fullmatch(r"%([a-z]+)\d+", text)
        if not match or match[1] not in self.classes:
            raise UnknownError(f"operand {text}")
        self.registers[text[1:]] = self.classes[match[1]]
        return text[1:]

    def value(self, text: str, type_: str) -> str:
        """The operand as a value of a PTX type."""
        cpp = CPP[type_]
        if text in SPECIAL:
            return f"static_cast<{cpp}>({SPECIAL[text]})"
        if text in self.symbols:
            return f"{cpp}{{{self.symbols[text]}}}"
        if text.startswith("!"):
            return f"!{self.value(text[1:], type_)}"
        if text.startswith("{"):  # the least significant first
            parts = split(text.strip("{}"))
            width = bits_of(type_) // len(parts)
            values = [f"{cpp}{{{self.value(part, f'b{width}')}}} << {n * width}" for n, part in enumerate(parts)]
            return " | ".join(values)
        if match := re.fullmatch(r"0[fd]([0-9A-F]+)", text, re.IGNORECASE):
            return f"std::bit_cast<{cpp}>(uint{4 * len(match[1])}_t{{0x{match[1]}u}})"
        if re.fullmatch(r"-?(0x[0-9A-F]+|\d+)U?", text, re.IGNORECASE):
            return f"static_cast<{cpp}>({int(text.rstrip('U'), 0) & (1 << 64) - 1}u)"
        return f"ptx::get<{cpp}>({self.register(text)})"

    def assign(self, text: str, type_: str, value: str) -> str:
        if text == "_":
            return f"(void)({value});"
        if text.startswith("{"):
            parts = split(text.strip("{}"))
            width = bits_of(type_) // len(parts)
            stores = [
                f"{self.register(part)} = static_cast<uint{width}_t>(all >> {n * width});"
                for n, part in enumerate(parts)
                if part != "_"
            ]
            return f"{{ const {CPP[type_]} all = {value}; {' '.join(stores)} }}"
        return f"ptx::put<{CPP[type_]}>({self.register(text)}, {value});"

    def address(self, text: str) -> str:
        match = re.fullmatch(r"\[([^+\]]+)(?:\+(-?\d+))?\]", text)
        if not match:
            raise UnknownError(f"address {text}")
        return f"ptx::add<uint64_t>({self.value(match[1], 'u64')}, static_cast<uint64_t>(int64_t{{{match[2] or 0}}}))"

    def place(self, text: str) -> int:
        self.tables.places.append((self.line, self.name, re.sub(r"\s+", " ", text)))
        return len(self.tables.places) - 1

    # -- statements --

    def instruction(self, text: str) -> None:
        guard, rest = "", text
        if match := re.match(r"@(!?%p\d+)\s+", text):
            guard, rest = f"if ({self.value(match[1], 'pred')}) ", text[match.end() :]
        opcode, *operands = split(rest)
        if self.is_new_block:
            self.products = {}
            self.tables.blocks.append(0)
            self.lines.append(f"ptx::reached[{len(self.tables.blocks) - 1}] = true;")
        self.tables.blocks[-1] += 1
        self.lines.append(f"{guard}{{ {self.translate(opcode, operands, text)} }}")
        self.is_new_block = bool(guard) or opcode in ("bra", "bra.uni", "ret")

    def label(self, name: str) -> str:
        return name.replace("$", "").lstrip("_")

    def translate(self, opcode: str, operands: list[str], text: str) -> str:
        if opcode in ("bra", "bra.uni"):
            return f"goto {self.label(operands[0])};"
        if opcode == "ret":
            return "return;"
        if opcode == "bar.sync" and operands == ["0"]:
            return f"t.barrier({self.place(text)});"
        if opcode in ("membar.gl", "membar.sys"):
            return f"t.fence({self.place(text)});"
        if match := re.fullmatch(rf"setp\.([a-z]+)\.({ANY})", opcode):
            return self.compare(match[1], match[2], operands)
        if match := re.fullmatch(rf"cvt(\.rn)?\.({ANY})\.({ANY})", opcode):
            return self.convert(match[1], match[2], match[3], operands)
        if match := re.fullmatch(
            rf"(ld|st)(\.volatile)?(\.param|\.global|\.shared)?(?:\.cg)?(?:\.v([24]))?\.({ANY})", opcode
        ):
            return self.access(match[1], match[2], match[3], int(match[4] or 1), match[5], operands, text)
        if match := re.fullmatch(r"atom(\.global|\.shared)\.(\w+)\.(u32|u64)", opcode):
            space, cpp = f"ptx::Space::{SPACES[match[1]]}", CPP[match[3]]
            update = ATOMICS[match[2]].format(self.value(operands[2], match[3]), T=cpp)
            f = f"[&]({cpp} old) {{ return {update}; }}"
            call = f"t.atomic<{space}, {cpp}>({self.address(operands[1])}, {f}, {self.place(text)})"
            return self.assign(operands[0], match[3], call)
        for pattern, code in ARITHMETIC:
            if match := re.fullmatch(pattern, opcode):
                return self.arithmetic(opcode, match[1], code, operands)
        raise UnknownError(f"opcode {opcode}")

    def arithmetic(self, opcode: str, type_: str, code: str, operands: list[str]) -> str:
        name, values = opcode.split(".")[0], []
        for n, operand in enumerate(operands[1:]):
            of = "u32" if (name, n) in COUNTS else "pred" if (name, n) in PREDICATES else type_
            values.append(self.value(operand, of))
        expression = code.format(*values, T=CPP[type_])
        if type_[0] == "f" and len(opcode.split(".")) == 2:
            expression = self.contracted(name, operands, values) or expression
        result = f"{type_[0]}{2 * bits_of(type_)}" if ".wide" in opcode else type_
        return self.assign(operands[0], result, expression)

    def contracted(self, name: str, operands: list[str], values: list[str]) -> str | None:
        """A sum as an assembler computes it that may contract, if one operand is a product."""
        if name == "mul":
            self.products[operands[0]] = ", ".join(values)
        if name == "add" and operands[1] in self.products:
            return f"ptx::rounded(std::fma({self.products[operands[1]]}, {values[1]}))"
        if name == "add" and operands[2] in self.products:
            return f"ptx::rounded(std::fma({self.products[operands[2]]}, {values[0]}))"
        if name == "sub" and operands[2] in self.products:
            return f"ptx::rounded(std::fma(-{self.products[operands[2]]}, {values[0]}))"
        return None

    def compare(self, how: str, type_: str, operands: list[str]) -> str:
        """Of floats: `lt` is false and `ltu` true where an operand is NaN, and so are the other comparisons."""
        a, b = self.value(operands[1], type_), self.value(operands[2], type_)
        if type_[0] != "f":
            return self.assign(operands[0], "pred", f"{a} {COMPARISONS[how]} {b}")
        is_unordered = how not in COMPARISONS
        compared = f"{a} {COMPARISONS[how[:-1] if is_unordered else how]} {b}"
        ordered = f"!std::isunordered({a}, {b})"
        return self.assign(
            operands[0], "pred", f"!({ordered}) || {compared}" if is_unordered else f"{ordered} && {compared}"
        )

    def convert(self, rounding: str | None, to: str, of: str, operands: list[str]) -> str:
        is_exact = "f" not in to + of or (to, of) == ("f64", "f32")
        if not is_exact and not (rounding and to[0] == "f"):
            raise UnknownError(f"conversion {rounding} {to} {of}")
        return self.assign(operands[0], to, f"ptx::rounded(static_cast<{CPP[to]}>({self.narrowed(operands[1], of)}))")

    def narrowed(self, text: str, type_: str) -> str:
        """An operand whose register may be wider than the type."""
        if text.startswith("%") and text not in SPECIAL and type_[0] != "f":
            return f"static_cast<{CPP[type_]}>({self.register(text)})"
        return self.value(text, type_)

    def access(
        self, what: str, strong: str | None, space: str | None, count: int, type_: str, operands: list[str], text: str
    ) -> str:
        at, data = (operands[1], operands[0]) if what == "ld" else operands
        parts = split(data.strip("{}"))
        if len(parts) != count:
            raise UnknownError(f"{count} operands in {data}")
        where = f"ptx::Space::{SPACES[space]}, {CPP[type_]}, {count}"
        how = f"{'true' if strong else 'false'}, {self.place(text)}"
        if what == "ld":
            loads = " ".join(self.assign(part, type_, f"v[{n}]") for n, part in enumerate(parts))
            return f"const auto v = t.load<{where}>({self.address(at)}, {how}); {loads}"
        values = ", ".join(self.narrowed(part, type_) for part in parts)
        return f"t.store<{where}>({self.address(at)}, {{{values}}}, {how});"

    def text(self) -> str:
        declared = [f"{cpp} {name} = 0;" for name, cpp in self.registers.items()]
        return "\n".join([f"void {self.name}(ptx::Thread& t) {{", *declared, *self.lines, "}"])


def read(path: pathlib.Path) -> tuple[Tables, list[Kernel]]:
    tables, kernels, shared = Tables(), [], {}
    for number, text in enumerate(path.read_text().splitlines(), 1):
        line = text.split("//")[0].strip()
        try:
            if not line or line in "{})" or line.startswith((".version", ".target", ".address_size")):
                continue
            if match := re.fullmatch(r"\.extern \.shared \.align 16 \.b8 (\w+)\[\];", line):
                shared[match[1]] = 0
            elif match := re.fullmatch(r"\.visible \.entry (\w+)\(", line):
                kernels.append(Kernel(match[1], tables, shared))
            elif not kernels:
                raise UnknownError(line)
            else:
                kernels[-1].line = number
                directive(kernels[-1], line)
        except (UnknownError, KeyError) as problem:
            sys.exit(f"{path}:{number}: unknown: {problem}\n  {line}")
    return tables, kernels


def directive(kernel: Kernel, line: str) -> None:
    if match := re.fullmatch(r"\.param \.align 8 \.b8 (\w+)\[(\d+)\]", line):
        kernel.symbols[match[1]] = 0
        kernel.parameter_bytes = int(match[2])
    elif match := re.fullmatch(r"\.maxntid (\d+), 1, 1", line):
        kernel.most_threads = int(match[1])
    elif match := re.fullmatch(r"\.reg \.(\w+)\s+%(\w+)<\d+>;", line):
        kernel.classes[match[2]] = "bool" if match[1] == "pred" else f"uint{bits_of(match[1])}_t"
    elif match := re.fullmatch(r"(\$\w+):", line):
        kernel.is_new_block = True
        kernel.lines.append(f"{kernel.label(match[1])}:;")
    elif match := re.fullmatch(r"\{ \.reg \.b(\d+) (\w+); (.*); \}", line):
        name = f"scoped_{kernel.line}"
        kernel.registers[name] = f"uint{match[1]}_t"
        kernel.scoped = {match[2]: name}
        kernel.instruction(match[3])
        kernel.scoped = {}
    elif line.endswith(";") and not line.startswith("."):
        kernel.instruction(line.rstrip(";").strip())
    elif not line.startswith(".pragma"):
        raise UnknownError(line)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main() -> None:
    tables, kernels = read(pathlib.Path(sys.argv[1]))
    wanted = [kernel for kernel in kernels if len(sys.argv) == 3 or kernel.name in sys.argv[3:]]
    listed = [f"{{{quoted(k.name)}, {k.parameter_bytes}, {k.most_threads}, &{k.name}}}," for k in wanted]
    places = [f"{{{line}, {quoted(kernel)}, {quoted(text)}}}," for line, kernel, text in tables.places]
    code = [
        "// Made by tests/support/ptx/translate.py.",
        '#include "tests/support/ptx/machine.h"',
        "namespace {",
        f"constexpr ptx::Place places[] = {{{' '.join(places)}}};",
        f"constexpr uint32_t block_sizes[] = {{{', '.join(map(str, tables.blocks))}}};",
        *[kernel.text() for kernel in wanted],
        f"constexpr ptx::Kernel kernels[] = {{{' '.join(listed)}}};",
        "}  // namespace",
        "namespace ptx {",
        f"bool reached[{len(tables.blocks)}];",
        "const Code code = {kernels, places, block_sizes};",
        "}  // namespace ptx",
        "",
    ]
    pathlib.Path(sys.argv[2]).write_text("\n".join(code))


if __name__ == "__main__":
    main()
