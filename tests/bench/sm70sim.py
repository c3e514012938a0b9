#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sm70sim - estimate the cycles per iteration of an sm_70 (Tesla V100) hot loop.

The input is machine code only: an object file, shared library or cubin (read
through ``cuobjdump -sass``) or a saved SASS listing.  No GPU is needed.

What is modelled (one SM, warp granularity, approximate cycles)
  * The control fields that ptxas writes in every 128-bit instruction: stall
    count, write / read scoreboard and the scoreboard wait mask.
  * Four sub-cores, each issuing one warp-instruction per cycle, in order per
    warp.  Warps go to sub-cores round-robin.
  * Per sub-core pipes with an issue interval (tensor, FMA, ALU, XU, FP64), and
    one load/store (MIO) pipe shared by the SM, fed by a bounded in-order queue
    per sub-core.
  * Shared-memory wavefronts.  Where the address of an LDS / STS is a function
    of the thread index alone, the tool executes the integer code before it for
    every thread and counts the real bank conflicts; elsewhere it assumes none.
  * CTA barriers, including named barriers with a thread count.
  * An average L2-to-SM bandwidth and a fixed global-memory latency.
  * Occupancy from registers, shared memory and warps per CTA.

What is NOT modelled
  * Caches, DRAM, TLBs, coalescing of global accesses (assumed perfect),
    instruction-cache misses, register-bank conflicts, clock throttling, and
    anything outside the loop (prologue, epilogue, launch, tail of the grid).
  * Data-dependent control flow: forward conditional branches in the loop fall
    through unless --taken says otherwise; predicated instructions issue.

Every number the model uses is in MACHINE_TABLE with its origin.
``--show-machine`` prints the table, ``--set NAME=VALUE`` overrides a value.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict, deque
from pathlib import Path

# the decoder and the bank rule are those of the emulator (docs/emulator.md)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tool"))
from patchctl.formats.sasscode import parse_functions  # noqa: E402
from patchctl.formats.sharedbanks import warp_wavefronts  # noqa: E402

# ----------------------------------------------------------------------------
# Machine parameters
# ----------------------------------------------------------------------------
# name: (value, origin, source).  origin is one of
#   published   vendor or published source, read while writing this tool
#   cited       number known from the named publication, its text not re-read
#   calibrated  uncertain; tuned on the calibration kernels (sm70sim.md) inside
#               the range that is given
#   assumed     no public number for Volta was found

MACHINE_TABLE = {
    # --- geometry and occupancy
    "sub_cores": (4, "published", "Volta whitepaper: 4 processing blocks per SM"),
    "registers_per_sm": (65536, "cited", "CUDA C Programming Guide, compute capability 7.0"),
    "register_unit": (256, "cited", "CUDA occupancy calculator: per-warp register unit"),
    "shared_bytes_per_sm": (98304, "cited", "CUDA C Programming Guide: 96 KiB on 7.0"),
    "shared_unit": (256, "cited", "CUDA occupancy calculator: shared allocation unit"),
    "max_warps_per_sm": (64, "cited", "CUDA C Programming Guide, 7.0"),
    "max_ctas_per_sm": (32, "cited", "CUDA C Programming Guide, 7.0"),
    # --- issue intervals, cycles per warp-instruction in one sub-core
    "fma_interval": (2, "published", "16 FP32 lanes per sub-core (whitepaper)"),
    "alu_interval": (2, "published", "16 INT32 lanes per sub-core (whitepaper)"),
    "fp64_interval": (4, "published", "8 FP64 lanes per sub-core (whitepaper)"),
    "xu_interval": (8, "cited", "16 special-function results / cycle / SM (CUDA guide)"),
    "hmma_f32_step_interval": (2, "published", "256 MAC/step, 128 MAC/cycle/sub-core (whitepaper)"),
    "hmma_f16_step_interval": (4, "published", "512 MAC/step, 128 MAC/cycle/sub-core (whitepaper)"),
    # --- latencies, cycles from issue to scoreboard release
    "hmma_latency": (12, "calibrated", "10..18 from Raihan 2019 (16 HMMA: 54 cycles)"),
    "hmma_read_latency": (6, "assumed", "cycles until HMMA operands may be overwritten"),
    "xu_latency": (20, "published", "accel-sim TITANV trace.config (MUFU, conversions)"),
    "fp64_latency": (8, "published", "accel-sim TITANV trace.config"),
    "other_latency": (20, "assumed", "S2R and anything unclassified with a scoreboard"),
    "lds_latency": (19, "cited", "Jia 2018: shared-memory load latency 19 cycles"),
    "shfl_latency": (22, "assumed", "close to LDS; the same pipe"),
    "mio_read_latency": (8, "assumed", "cycles after dispatch until MIO source registers are free"),
    "l1_latency": (28, "cited", "Jia 2018: L1 hit; used for register spills"),
    "gmem_latency": (300, "calibrated", "193 (L2 hit, Jia 2018) .. ~400 (DRAM)"),
    # --- shared load/store pipe
    "mio_accept_interval": (1, "published", "NVIDIA forum 273699 (Ampere): 1 / cycle to the LSU"),
    "mio_subcore_interval": (4, "published", "8 load/store lanes per sub-core (whitepaper)"),
    "mio_queue_depth": (12, "calibrated", "per sub-core; no public number, 4..16 tried"),
    "mio_wavefront_cycles": (1, "published", "NVIDIA forum 77228: 128 B / cycle"),
    "l2_bytes_per_cycle": (19.5, "cited", "Jia 2018: 2155 GB/s over 80 SMs at 1.38 GHz"),
    # --- control
    "barrier_latency": (10, "calibrated", "last arrival to release; 10..30 tried"),
    "taken_branch_penalty": (8, "assumed", "refill after a taken branch"),
}

WARP = 32
NO_BARRIER = 7


class UsageError(Exception):
    """A problem the user can fix; reported without a traceback."""


class Machine:
    """The machine parameters as attributes, with optional overrides."""

    def __init__(self, overrides=None):
        for name, (value, _origin, _source) in MACHINE_TABLE.items():
            setattr(self, name, value)
        for name, value in (overrides or {}).items():
            if name not in MACHINE_TABLE:
                raise UsageError(f"unknown machine parameter {name!r}")
            setattr(self, name, value)


# ----------------------------------------------------------------------------
# SASS parsing
# ----------------------------------------------------------------------------

def parse_sass(text):
    """Return the functions of a ``cuobjdump -sass`` listing."""
    functions = parse_functions(text)
    if not functions:
        raise UsageError("no sm_70 instructions with both encoding words found")
    return functions


def run_cuobjdump(cuobjdump, arguments):
    try:
        result = subprocess.run([cuobjdump, *arguments], capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"cannot run {cuobjdump}: {error}") from error
    if result.returncode:
        raise UsageError(f"{cuobjdump} failed: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def load_functions(path, cuobjdump):
    """Read kernels from a SASS listing or, through cuobjdump, from a binary."""
    if not os.path.exists(path):
        raise UsageError(f"no such file: {path}")
    with open(path, "rb") as stream:
        head = stream.read(4)
    if head != b"\x7fELF" and head[:2] != b"!<":
        with open(path, encoding="utf-8", errors="replace") as stream:
            return parse_sass(stream.read())
    functions = parse_sass(run_cuobjdump(cuobjdump, ["-sass", "-arch", "sm_70", path]))
    attach_launch_facts(functions, run_cuobjdump(cuobjdump, ["-res-usage", "-arch", "sm_70", path]),
                        run_cuobjdump(cuobjdump, ["-elf", "-arch", "sm_70", path]))
    return functions


def attach_launch_facts(functions, res_usage, elf_dump):
    """Fill registers, static shared memory and the thread limit of each kernel."""
    usage = {m[1]: (int(m[2]), int(m[3])) for m in re.finditer(
        r"Function (\S+):\s*\n\s*REG:(\d+) STACK:\S+ SHARED:(\d+)", res_usage)}
    threads = {}
    for section in re.split(r"^\.nv\.info\.", elf_dump, flags=re.M)[1:]:
        name = section.split(None, 1)[0]
        match = re.search(r"EIATTR_(?:MAX_THREADS|REQNTID)\s+Format:\s*\S+\s+Value:\s*"
                          r"0x([0-9a-f]+) 0x([0-9a-f]+) 0x([0-9a-f]+)", section.split("\n.nv.")[0])
        if match:
            threads[name] = math.prod(int(g, 16) for g in match.groups())
    for function in functions:
        function.registers, function.static_shared = usage.get(function.name, (None, 0))
        function.max_threads = threads.get(function.name)


# ----------------------------------------------------------------------------
# Loops
# ----------------------------------------------------------------------------

def find_loops(function):
    """Return [(start, end)] addresses of backward branches, innermost first."""
    loops = []
    for inst in function.instructions:
        target = inst.branch_target
        if target is not None and target < inst.address and target in function.index_of:
            loops.append((target, inst.address))
    return sorted(loops, key=lambda loop: loop[1] - loop[0])


def count_base(function, loop, base):
    return sum(inst.base == base for inst in loop_body(function, loop))


def loop_body(function, loop):
    first, last = function.index_of[loop[0]], function.index_of[loop[1]]
    return function.instructions[first:last + 1]


def pick_hot_loop(function):
    """The loop with most HMMA; else the longest.  Ties go to the smaller loop."""
    loops = find_loops(function)
    if not loops:
        raise UsageError(f"{function.name}: no loop found")
    best = max(loops, key=lambda loop: (count_base(function, loop, "HMMA"), loop[0] - loop[1]))
    if count_base(function, best, "HMMA"):
        return best
    return max(loops, key=lambda loop: loop[1] - loop[0])


def iteration_trace(function, loop, taken=()):
    """Instructions of one iteration, following the assumed branch directions.

    Unconditional branches are followed, also to code outside the loop body
    (ptxas moves cold blocks there).  BRA.DIV only acts on divergent warps and is
    not taken.  Returns (instructions, positions whose branch is taken).
    """
    trace, jumps, visited = [], set(), set()
    position, last = function.index_of[loop[0]], function.index_of[loop[1]]
    while True:
        inst = function.instructions[position]
        if position in visited or inst.base in ("EXIT", "RET", "BRX"):
            raise UsageError(f"the assumed path does not return to 0x{loop[0]:x} "
                             f"(stuck at 0x{inst.address:x}); check --taken and --loop")
        visited.add(position)
        trace.append(inst)
        if position == last:
            jumps.add(len(trace) - 1)
            return trace, jumps
        position += 1
        if inst.branch_target is not None and "DIV" not in inst.opcode and (
                inst.guard is None or inst.address in taken):
            jumps.add(len(trace) - 1)
            position = function.index_of[inst.branch_target]


# ----------------------------------------------------------------------------
# Per-thread integer evaluation, for shared-memory addresses
# ----------------------------------------------------------------------------
# A value is a list with one 32-bit integer per thread, or None when unknown.
# A predicate is a list of booleans, or None.

MASK32 = 0xFFFFFFFF


def signed(value):
    return value - (1 << 32) if value & 0x80000000 else value


def lut3(a, b, c, table):
    """The LOP3 function: bit i of the table answers input bits (a, b, c) = i."""
    result = 0
    for index in range(8):
        if table >> index & 1:
            result |= ((a if index & 4 else ~a) & (b if index & 2 else ~b)
                       & (c if index & 1 else ~c))
    return result & MASK32


def permute_bytes(a, selector, b):
    source = a | b << 32
    result = 0
    for lane in range(4):
        nibble = selector >> 4 * lane & 0xF
        byte = source >> 8 * (nibble & 7) & 0xFF
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * lane
    return result


COMPARE = {
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b, "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b}
COMBINE = {"AND": lambda a, b: a and b, "OR": lambda a, b: a or b, "XOR": lambda a, b: a != b}


class LaneState:
    """Known register and predicate values at one program point."""

    def __init__(self, registers=None, predicates=None):
        self.registers = dict(registers or {})
        self.predicates = dict(predicates or {})

    def copy(self):
        return LaneState(self.registers, self.predicates)

    def meet(self, other):
        """Keep only what both states agree on."""
        def common(mine, theirs):
            return {k: v for k, v in mine.items() if theirs.get(k) == v}
        return LaneState(common(self.registers, other.registers),
                         common(self.predicates, other.predicates))


class LaneEvaluator:
    """Executes thread-index arithmetic for all threads of a CTA.

    One pass in address order: states meet at forward branch targets, loads and
    kernel parameters are unknown, back edges are ignored (so an address that
    changes per iteration is seen as in the first iteration).
    """

    def __init__(self, function, threads):
        self.function = function
        self.threads = threads
        self.shared_access = {}      # address -> (lane addresses or None, active or None)
        self._run()

    def _run(self):
        pending = {}                 # target address -> state
        state = LaneState()
        for inst in self.function.instructions:
            if inst.address in pending:
                arriving = pending.pop(inst.address)
                state = arriving if state is None else state.meet(arriving)
            if state is None:
                continue
            target = inst.branch_target
            if target is not None and target > inst.address and "DIV" not in inst.opcode:
                pending[target] = (pending[target].meet(state) if target in pending
                                   else state.copy())
            if inst.base in ("BRA", "EXIT", "JMP", "BRX", "RET") and inst.guard in (None, "PT"):
                state = None
                continue
            if inst.base == "CALL":
                state = self._after_call(inst, state, pending)
                continue
            if inst.base in ("LDS", "STS", "ATOMS"):
                self.shared_access[inst.address] = (
                    self._shared_address(inst, state), self._guard_value(inst, state))
            self._execute(inst, state)

    @staticmethod
    def _after_call(inst, state, pending):
        """The callee sees the caller's values; afterwards nothing is known."""
        match = re.search(r"0x([0-9a-f]+)", inst.operands[-1]) if inst.operands else None
        target = int(match.group(1), 16) if match else 0
        if target > inst.address:
            pending[target] = (pending[target].meet(state) if target in pending
                               else state.copy())
        return LaneState()

    # -- operand access

    def _predicate(self, token, state):
        negated = token.startswith("!")
        name = token.lstrip("!")
        value = [True] * self.threads if name == "PT" else state.predicates.get(name)
        return [not v for v in value] if negated and value is not None else value

    def _guard_value(self, inst, state):
        return [True] * self.threads if inst.guard is None else self._predicate(inst.guard, state)

    def _value(self, token, state):
        token = token.replace(".reuse", "")
        negative = token.startswith("-")
        inverted = token.startswith("~")
        token = token.lstrip("-~")
        value = self._plain_value(token, state)
        if value is None:
            return None
        if inverted:
            return [~v & MASK32 for v in value]
        return [-v & MASK32 for v in value] if negative else value

    def _plain_value(self, token, state):
        if token in ("RZ", "SRZ"):
            return [0] * self.threads
        if re.fullmatch(r"R\d+", token):
            return state.registers.get(int(token[1:]))
        if re.fullmatch(r"0x[0-9a-f]+|\d+", token):
            return [int(token, 0) & MASK32] * self.threads
        if token == "c[0x0][0x0]":           # blockDim.x
            return [self.threads] * self.threads
        return None

    def _shared_address(self, inst, state):
        operand = next((op for op in inst.operands if "[" in op and not op.startswith("c[")), None)
        match = operand and re.fullmatch(
            r"\[(R\d+|RZ)?(?:\.X(4|8|16))?\+?(-?0x[0-9a-f]+)?\]", operand.replace(".reuse", ""))
        if not match:
            return None
        register, scale, offset = match.groups()
        base = self._value(register, state) if register else [0] * self.threads
        if base is None:
            return None
        return [(b * int(scale or 1) + int(offset or "0", 16)) & MASK32 for b in base]

    # -- execution

    def _execute(self, inst, state):
        if inst.base == "ISETP":
            self._execute_isetp(inst, state)
            return
        if inst.base == "R2P":
            self._execute_r2p(inst, state)
            return
        if not inst.operands:
            return
        if inst.base in ("LDL", "STL"):
            self._execute_local(inst, state)
            return
        destinations = self._destination_registers(inst)
        results = self._results(inst, state, len(destinations)) if destinations else []
        guard = self._guard_value(inst, state)
        for register, value in zip(destinations, results):
            self._write(register, value, guard, state)
        for operand in inst.operands[:3]:    # predicate destinations
            if re.fullmatch(r"P[0-6]", operand):
                state.predicates.pop(operand, None)
        if inst.base == "LOP3":
            self._lop3_predicate(inst, state)

    def _write(self, register, value, guard, state):
        if value is None or guard is None:
            state.registers.pop(register, None)
        elif all(guard):
            state.registers[register] = value
        else:
            old = state.registers.get(register)
            if old is None:
                state.registers.pop(register, None)
            else:
                state.registers[register] = [v if g else o for v, g, o in zip(value, guard, old)]

    @staticmethod
    def _destination_registers(inst):
        if inst.base in ("STS", "STG", "ST", "STL", "RED", "BAR", "DEPBAR", "BRA", "EXIT"):
            return []
        match = next((re.fullmatch(r"R(\d+)(?:\.reuse)?", op) for op in inst.operands[:2]
                      if op.startswith("R") and op != "RZ"), None)
        if not match:
            return []
        first = int(match.group(1))
        width = 1
        if "WIDE" in inst.opcode or inst.base in ("DADD", "DMUL", "DFMA", "HMMA", "CS2R"):
            width = 2
        elif inst.base in ("LDS", "LDG", "LD", "LDC", "ATOMG", "ATOMS"):
            width = max(1, inst.access_bytes // 4)
        return list(range(first, first + width))

    def _results(self, inst, state, width):
        """Per-thread values of the destination registers, None where unknown."""
        unknown = [None] * width
        handler = getattr(self, "_op_" + inst.base.lower(), None)
        if handler is None:
            return unknown
        try:
            value = handler(inst, state)
        except (IndexError, ValueError):
            return unknown
        if value is None:
            return unknown
        if width == 2:
            return [[v & MASK32 for v in value], [v >> 32 & MASK32 for v in value]]
        return [[v & MASK32 for v in value]]

    def _sources(self, inst, state, count):
        """The `count` value operands after the destination, skipping predicates."""
        after = 2 if re.fullmatch(r"P[T0-6]", inst.operands[0]) else 1
        tokens = [op for op in inst.operands[after:] if not re.fullmatch(r"!?P[T0-6]", op)]
        values = [self._value(token, state) for token in tokens[:count]]
        return values if len(values) == count and None not in values else None

    def _elementwise(self, inst, state, count, function):
        values = self._sources(inst, state, count)
        return None if values is None else [function(*lane) for lane in zip(*values)]

    def _op_s2r(self, inst, state):
        special = inst.operands[1]
        if special == "SR_TID.X":
            return list(range(self.threads))
        if special in ("SR_TID.Y", "SR_TID.Z"):
            return [0] * self.threads
        if special == "SR_LANEID":
            return [t % WARP for t in range(self.threads)]
        return None

    def _op_mov(self, inst, state):
        return self._value(inst.operands[1], state)

    def _op_cs2r(self, inst, state):
        return [0] * self.threads if inst.operands[1] == "SRZ" else None

    def _op_iabs(self, inst, state):
        return self._elementwise(inst, state, 1, lambda a: abs(signed(a)))

    def _op_imad(self, inst, state):
        if "X" in inst.opcode or "HI" in inst.opcode:
            return None
        if "WIDE" in inst.opcode:
            return self._imad_wide(inst, state)
        return self._elementwise(inst, state, 3, lambda a, b, c: a * b + c)

    def _imad_wide(self, inst, state):
        values = self._sources(inst, state, 2)
        addend = inst.operands[-1].replace(".reuse", "")
        if values is None or addend != "RZ":
            return None
        convert = (lambda v: v) if "U32" in inst.opcode else signed
        return [convert(a) * convert(b) for a, b in zip(*values)]

    def _op_iadd3(self, inst, state):
        if "X" in inst.opcode:
            return None
        return self._elementwise(inst, state, 3, lambda a, b, c: a + b + c)

    def _op_lea(self, inst, state):
        shift_token = next(op for op in reversed(inst.operands) if re.fullmatch(r"0x[0-9a-f]+", op))
        shift = int(shift_token, 16)
        if "X" in inst.opcode:
            return None
        if "HI" not in inst.opcode:
            return self._elementwise(inst, state, 2, lambda a, b: (a << shift) + b)
        if "SX32" in inst.opcode:
            return self._elementwise(inst, state, 2, lambda a, b: (signed(a) >> (32 - shift)) + b)
        return self._elementwise(
            inst, state, 3, lambda a, b, c: ((c << 32 | a) << shift >> 32) + b)

    def _op_lop3(self, inst, state):
        table = self._lop3_table(inst)
        return self._elementwise(inst, state, 3, lambda a, b, c: lut3(a, b, c, table))

    @staticmethod
    def _lop3_table(inst):
        return int([op for op in inst.operands if not re.fullmatch(r"!?P[T0-6]", op)][-1], 16)

    def _lop3_predicate(self, inst, state):
        """LOP3 P, RZ, a, b, c, lut sets P where the result is non-zero."""
        name = inst.operands[0]
        if not re.fullmatch(r"P[0-6]", name):
            return
        tokens = [op for op in inst.operands[2:] if not re.fullmatch(r"!?P[T0-6]", op)]
        values = [self._value(token, state) for token in tokens[:3]]
        if inst.guard is None and None not in values and inst.operands[-1] == "!PT":
            table = int(tokens[3], 16)
            state.predicates[name] = [lut3(a, b, c, table) != 0 for a, b, c in zip(*values)]

    def _op_shf(self, inst, state):
        left, high = "L" in inst.opcode, "HI" in inst.opcode
        arithmetic = "S32" in inst.opcode or "S64" in inst.opcode

        def shift(low, amount, upper):
            amount = amount & 63 if "64" in inst.opcode[-1] else min(amount, 32)
            wide = upper << 32 | low
            if left:
                wide = wide << amount
            elif arithmetic and upper & 0x80000000:
                wide = (wide - (1 << 64)) >> amount
            else:
                wide >>= amount
            return wide >> 32 if high else wide
        return self._elementwise(inst, state, 3, shift)

    def _op_sel(self, inst, state):
        values = self._sources(inst, state, 2)
        choice = self._predicate(inst.operands[-1], state)
        if values is None or choice is None:
            return None
        return [a if p else b for a, b, p in zip(*values, choice)]

    def _op_prmt(self, inst, state):
        return self._elementwise(inst, state, 3, permute_bytes)

    def _op_imnmx(self, inst, state):
        values = self._sources(inst, state, 2)
        choice = self._predicate(inst.operands[-1], state)
        if values is None or choice is None:
            return None
        convert = (lambda v: v) if "U32" in inst.opcode else signed
        return [(min if p else max)(convert(a), convert(b)) for a, b, p in zip(*values, choice)]

    def _execute_local(self, inst, state):
        """Register spills: local memory addressed as [R1 + constant]."""
        is_load = inst.base == "LDL"
        register, address = inst.operands if is_load else reversed(inst.operands)
        slot = re.fullmatch(r"\[R1\+?(0x[0-9a-f]+)?\]", address)
        first = re.fullmatch(r"R(\d+)", register.replace(".reuse", ""))
        guard = self._guard_value(inst, state)
        for word in range(max(1, inst.access_bytes // 4)):
            key = ("spill", int(slot.group(1) or "0", 16) + 4 * word) if slot else None
            name = int(first.group(1)) + word if first else None
            source, target = (key, name) if is_load else (name, key)
            if target is not None:
                self._write(target, state.registers.get(source), guard, state)

    def _execute_r2p(self, inst, state):
        """R2P PR, Rn, mask: predicate i becomes bit i of Rn for the bits of mask."""
        value = self._value(inst.operands[1], state)
        mask = int(inst.operands[2], 16)
        exact = value is not None and inst.guard is None and len(inst.opcode) == 1
        for bit in range(7):
            if mask >> bit & 1:
                state.predicates.pop(f"P{bit}", None)
                if exact:
                    state.predicates[f"P{bit}"] = [bool(v >> bit & 1) for v in value]

    def _execute_isetp(self, inst, state):
        target, second = inst.operands[0], inst.operands[1]
        for name in (target, second):
            state.predicates.pop(name, None)
        compare = COMPARE.get(inst.opcode[1])
        combine = COMBINE.get(inst.opcode[-1])
        values = [self._value(token, state) for token in inst.operands[2:4]]
        other = self._predicate(inst.operands[-1], state)
        if (target == "PT" or None in values or other is None or not compare or not combine
                or inst.guard is not None or "EX" in inst.opcode):
            return
        convert = (lambda v: v) if "U32" in inst.opcode else signed
        state.predicates[target] = [
            combine(compare(convert(a), convert(b)), o) for a, b, o in zip(*values, other)]


# ----------------------------------------------------------------------------
# Shared-memory wavefronts
# ----------------------------------------------------------------------------

def shared_wavefronts(inst, access, warps):
    """Wavefronts per warp (a list), and whether they come from real addresses."""
    ideal = max(1, inst.access_bytes // 4)
    addresses, active = access if access else (None, None)
    if addresses is None:
        return [ideal] * warps, False
    active = active or [True] * len(addresses)
    result = []
    for warp in range(warps):
        lanes = slice(warp * WARP, (warp + 1) * WARP)
        result.append(warp_wavefronts(addresses[lanes], active[lanes], inst.access_bytes,
                                      inst.base == "LDS"))
    return result, True


# ----------------------------------------------------------------------------
# Instruction classes
# ----------------------------------------------------------------------------

FMA_OPS = {"FFMA", "FMUL", "FADD", "IMAD", "IMUL", "FFMA32I", "FMUL32I", "FADD32I",
           "HFMA2", "HADD2", "HMUL2", "HFMA2_32I", "HADD2_32I", "HMUL2_32I", "HSETP2", "HSET2"}
XU_OPS = {"MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV", "I2I"}
FP64_OPS = {"DADD", "DFMA", "DMUL", "DSETP"}
SHARED_OPS = {"LDS", "STS", "ATOMS"}
GLOBAL_LOADS = {"LDG", "LD", "ATOM", "ATOMG"}
GLOBAL_STORES = {"STG", "ST", "RED"}
LOCAL_OPS = {"LDL", "STL"}
OTHER_MIO_OPS = {"SHFL", "LDC", "MATCH"}
CONTROL_OPS = {"BRA", "EXIT", "BSSY", "BSYNC", "BREAK", "NOP", "WARPSYNC", "DEPBAR", "BAR",
               "MEMBAR", "ERRBAR", "CCTL", "YIELD", "JMP", "BRX", "CALL", "RET", "KILL"}
MIO_OPS = SHARED_OPS | GLOBAL_LOADS | GLOBAL_STORES | LOCAL_OPS | OTHER_MIO_OPS


def pipe_of(inst):
    base = inst.base
    if base == "HMMA":
        return "tensor"
    if base in FMA_OPS:
        return "fma"
    if base in XU_OPS:
        return "xu"
    if base in FP64_OPS:
        return "fp64"
    if base in MIO_OPS:
        return "mio"
    if base in CONTROL_OPS:
        return "control"
    if base in ("S2R", "CS2R"):
        return "other"
    return "alu"


def pipe_interval(inst, machine):
    pipe = pipe_of(inst)
    if pipe == "tensor":
        return (machine.hmma_f16_step_interval if "F32" not in inst.opcode
                else machine.hmma_f32_step_interval)
    return {"fma": machine.fma_interval, "alu": machine.alu_interval, "xu": machine.xu_interval,
            "fp64": machine.fp64_interval}.get(pipe, 0)


# ----------------------------------------------------------------------------
# Prepared loop: everything the simulator needs, resolved per instruction
# ----------------------------------------------------------------------------

class Step:
    """An instruction of the iteration with its resolved costs."""

    __slots__ = ("inst", "pipe", "interval", "wait_bits", "write_sb", "read_sb", "stall",
                 "wavefronts", "global_bytes", "memory_latency", "is_barrier",
                 "barrier_blocks", "barrier_id",
                 "barrier_threads", "depbar", "branch_taken", "fixed_latency")

    def __init__(self, inst, machine, branch_taken):
        self.inst = inst
        self.pipe = pipe_of(inst)
        self.interval = pipe_interval(inst, machine)
        self.wait_bits = [b for b in range(6) if inst.wait_mask >> b & 1]
        self.write_sb = inst.write_barrier if inst.write_barrier < 6 else None
        self.read_sb = inst.read_barrier if inst.read_barrier < 6 else None
        self.stall = max(1, inst.stall)
        self.branch_taken = branch_taken
        self.wavefronts = None       # memory costs: set by Loop
        self.global_bytes = 0
        self.memory_latency = 0
        self._decode_barrier(inst)
        self._decode_depbar(inst)
        self.fixed_latency = {"tensor": machine.hmma_latency, "xu": machine.xu_latency,
                              "fp64": machine.fp64_latency}.get(self.pipe, machine.other_latency)

    def _decode_barrier(self, inst):
        self.is_barrier = inst.base == "BAR"
        self.barrier_blocks = "ARV" not in inst.opcode
        numbers = [int(op, 0) for op in inst.operands if re.fullmatch(r"0x[0-9a-f]+|\d+", op)]
        self.barrier_id = numbers[0] if numbers else 0
        self.barrier_threads = numbers[1] if len(numbers) > 1 else None

    def _decode_depbar(self, inst):
        self.depbar = None
        if inst.base == "DEPBAR" and inst.operands:
            scoreboard = re.search(r"SB(\d)", inst.operands[0])
            count = int(inst.operands[1], 0) if len(inst.operands) > 1 else 0
            if scoreboard:
                self.depbar = (int(scoreboard.group(1)), count)


class Loop:
    """The hot loop of one kernel, ready to simulate."""

    def __init__(self, function, bounds, machine, warps, options):
        self.function = function
        self.bounds = bounds
        self.warps = warps
        trace, jumps = iteration_trace(function, bounds, options.taken)
        lanes = LaneEvaluator(function, warps * WARP)
        self.known_addresses = self.unknown_addresses = 0
        self.conflict_excess = {}
        self.steps = []
        for position, inst in enumerate(trace):
            step = Step(inst, machine, position in jumps)
            if step.pipe == "mio":
                self._resolve_memory(step, lanes, options, machine)
            self.steps.append(step)

    def _resolve_memory(self, step, lanes, options, machine):
        inst = step.inst
        ideal = 1 if inst.base in OTHER_MIO_OPS else max(1, inst.access_bytes // 4)
        step.wavefronts = [ideal] * self.warps
        if inst.base in SHARED_OPS:
            step.memory_latency = machine.lds_latency
            step.wavefronts = self._shared_wavefronts(inst, ideal, lanes, options)
        elif inst.base in GLOBAL_LOADS | GLOBAL_STORES:
            step.memory_latency = machine.gmem_latency
            step.global_bytes = WARP * inst.access_bytes
        elif inst.base in LOCAL_OPS:
            step.memory_latency = machine.l1_latency
        else:
            step.memory_latency = machine.shfl_latency
        step.memory_latency = options.latency.get(inst.address, step.memory_latency)

    def _shared_wavefronts(self, inst, ideal, lanes, options):
        access = lanes.shared_access.get(inst.address)
        counts, known = shared_wavefronts(inst, access, self.warps)
        self.known_addresses += known
        self.unknown_addresses += not known
        factor = options.lds_factor.get(inst.address, options.lds_factor.get(None))
        if factor is not None:
            counts = [ideal * factor] * self.warps
        if sum(counts) > ideal * self.warps:
            self.conflict_excess[inst.address] = sum(counts) / self.warps / ideal
        return counts


# ----------------------------------------------------------------------------
# The simulator
# ----------------------------------------------------------------------------

NEVER = math.inf


class Pending:
    """One outstanding scoreboard reference; `release` is NEVER until dispatch."""

    __slots__ = ("release", "producer")

    def __init__(self, release, producer):
        self.release = release
        self.producer = producer


class Warp:
    """Execution state of one warp."""

    __slots__ = ("cta", "index", "sub_core", "position", "iteration", "ready", "check_at",
                 "scoreboards", "at_barrier", "iteration_ends")

    def __init__(self, cta, index, sub_core, start):
        self.cta = cta
        self.index = index
        self.sub_core = sub_core
        self.position = 0            # next instruction in the iteration
        self.iteration = 0
        self.ready = start           # first cycle that stall counts allow
        self.check_at = start        # no need to look at this warp before
        self.scoreboards = [[] for _ in range(6)]   # lists of Pending
        self.at_barrier = False
        self.iteration_ends = []


class Simulator:
    """Steps the SM cycle by cycle over a fixed number of loop iterations."""

    PIPES = ("tensor", "fma", "alu", "xu", "fp64")

    def __init__(self, loop, machine, ctas, iterations):
        self.loop, self.machine = loop, machine
        self.iterations = iterations
        cores = range(machine.sub_cores)
        self.pipe_free = [dict.fromkeys(self.PIPES, 0) for _ in cores]
        self.last_issued = [None for _ in cores]
        self.queues = [deque() for _ in cores]       # MIO: (step, warp, write, read)
        self.queue_had_space = [0 for _ in cores]    # when a full queue last drained
        self.core_dispatch_free = [0 for _ in cores]
        self.mio_free = 0.0
        self.next_core = 0                           # MIO round-robin pointer
        self.l2_free = 0.0
        self.barriers = defaultdict(list)            # (cta, id) -> [warp]
        self.stall_log = []                          # (cycle, address, reason, cycles)
        self.warps = self._create_warps(ctas)
        self.active = [[w for w in self.warps if w.sub_core == c] for c in cores]

    def _create_warps(self, ctas):
        machine, loop = self.machine, self.loop
        lower_bound = max(pipe_bounds(loop, machine, ctas).values())
        warps = []
        for cta in range(ctas):
            start = int(cta * lower_bound / ctas)      # CTAs drift apart in real runs
            for index in range(loop.warps):
                sub_core = (cta * loop.warps + index) % machine.sub_cores
                warps.append(Warp(cta, index, sub_core, start))
        return warps

    # -- main loop

    def run(self):
        cycle = 0
        while any(self.active):
            progress = self._dispatch_mio(cycle)
            for core, warps in enumerate(self.active):
                warp = self._select(warps, core, cycle)
                if warp is not None:
                    self._issue(warp, cycle)
                    progress = True
                    if warp.iteration == self.iterations:
                        warps.remove(warp)
            cycle = cycle + 1 if progress else self._next_event(cycle)
        return self.warps

    def _next_event(self, cycle):
        """The next cycle at which anything can happen."""
        times = [w.check_at for warps in self.active for w in warps if not w.at_barrier]
        times += [max(math.floor(self.mio_free), self.core_dispatch_free[core])
                  for core, queue in enumerate(self.queues) if queue]
        soonest = min((t for t in times if t > cycle), default=NEVER)
        if soonest == NEVER:
            raise UsageError("deadlock: warps wait at a barrier that not all of them reach "
                             "(check --warps, --taken and --loop)")
        return math.ceil(soonest)

    def _select(self, warps, core, cycle):
        """Greedy-then-oldest, but no warp runs a whole iteration ahead of another."""
        best = best_rank = None
        for warp in warps:
            if warp.at_barrier or warp.check_at > cycle:
                continue
            earliest = max(self._constraints(warp, core))[0]
            if earliest > cycle:
                warp.check_at = earliest
                continue
            rank = (warp.iteration, warp is not self.last_issued[core], warp.ready)
            if best is None or rank < best_rank:
                best, best_rank = warp, rank
        return best

    def _constraints(self, warp, core):
        """[(first cycle allowed, reason)] for the next instruction of a warp."""
        step = self.loop.steps[warp.position]
        constraints = [(warp.ready, "issue")]
        for bit in step.wait_bits:
            constraints += [(p.release, "scoreboard " + p.producer) for p in warp.scoreboards[bit]]
        if step.depbar:
            bit, allowed = step.depbar
            pending = sorted(warp.scoreboards[bit], key=lambda p: p.release)
            if len(pending) > allowed:
                entry = pending[-1 - allowed]
                constraints.append((entry.release, "scoreboard " + entry.producer))
        if step.interval:
            constraints.append((self.pipe_free[core][step.pipe], step.pipe + " pipe"))
        elif step.pipe == "mio" or step.is_barrier:
            full = len(self.queues[core]) >= self.machine.mio_queue_depth
            constraints.append((NEVER if full else self.queue_had_space[core], "MIO queue full"))
        return constraints

    # -- issue

    def _issue(self, warp, cycle):
        core, machine = warp.sub_core, self.machine
        step = self.loop.steps[warp.position]
        self._account_stalls(warp, core, cycle, step)
        self.last_issued[core] = warp
        for bit in step.wait_bits:
            warp.scoreboards[bit].clear()
        if step.interval:
            self.pipe_free[core][step.pipe] = cycle + step.interval
        write, read = self._new_references(warp, step)
        if step.pipe == "mio" or step.is_barrier:
            self.queues[core].append((step, warp, write, read))
            warp.at_barrier = step.is_barrier and step.barrier_blocks
        else:
            self._release(write, cycle + step.fixed_latency)
            self._release(read, cycle + machine.hmma_read_latency)
        warp.ready = cycle + step.stall
        if step.branch_taken:
            warp.ready = max(warp.ready, cycle + machine.taken_branch_penalty)
        warp.check_at = warp.ready
        warp.position += 1
        if warp.position == len(self.loop.steps):
            warp.position = 0
            warp.iteration += 1
            warp.iteration_ends.append(cycle)

    @staticmethod
    def _new_references(warp, step):
        """Scoreboard references that this instruction holds."""
        write = read = None
        name = step.inst.base
        if step.write_sb is not None:
            write = Pending(NEVER, name)
            warp.scoreboards[step.write_sb].append(write)
        if step.read_sb is not None:
            read = Pending(NEVER, name + " operands")
            warp.scoreboards[step.read_sb].append(read)
        return write, read

    @staticmethod
    def _release(reference, cycle):
        if reference is not None:
            reference.release = cycle

    # -- the shared load/store pipe

    def _dispatch_mio(self, cycle):
        """Move one instruction from a sub-core queue to the shared pipe."""
        if self.mio_free >= cycle + 1:       # keeps fractions of a cycle
            return False
        count = self.machine.sub_cores
        for offset in range(count):
            core = (self.next_core + offset) % count
            if self.queues[core] and self.core_dispatch_free[core] <= cycle:
                self.next_core = (core + 1) % count
                self._dispatch_from(core, cycle)
                return True
        return False

    def _dispatch_from(self, core, cycle):
        machine, queue = self.machine, self.queues[core]
        if len(queue) == machine.mio_queue_depth:
            self.queue_had_space[core] = cycle
        step, warp, write, read = queue.popleft()
        for other in self.active[core]:        # queue space and references have changed
            other.check_at = min(other.check_at, max(other.ready, cycle))
        warp.check_at = max(warp.ready, cycle)
        if step.is_barrier:
            self._arrive(warp, step, cycle)
            return
        busy = max(machine.mio_accept_interval,
                   step.wavefronts[warp.index] * machine.mio_wavefront_cycles)
        self.mio_free = max(self.mio_free, cycle) + busy
        self.core_dispatch_free[core] = cycle + machine.mio_subcore_interval
        self._release(write, self._mio_completion(step, cycle, busy))
        self._release(read, cycle + machine.mio_read_latency)

    def _mio_completion(self, step, start, busy):
        machine = self.machine
        if step.global_bytes:
            self.l2_free = max(self.l2_free, start) + step.global_bytes / machine.l2_bytes_per_cycle
            return max(start + step.memory_latency, self.l2_free)
        return start + busy - 1 + step.memory_latency

    def _arrive(self, warp, step, cycle):
        """Register a barrier arrival; the last one releases everybody."""
        waiting = self.barriers[warp.cta, step.barrier_id]
        waiting.append(warp)
        expected = (step.barrier_threads or self.loop.warps * WARP) // WARP
        if len(waiting) < expected:
            return
        release = cycle + self.machine.barrier_latency
        for other in waiting:
            if not other.at_barrier:           # it used BAR.ARV
                continue
            self._log(other.ready, step.inst.address, "barrier", release - other.ready)
            other.at_barrier = False
            other.ready = other.check_at = max(release, other.ready)
        waiting.clear()

    # -- stall accounting

    def _account_stalls(self, warp, core, cycle, step):
        """Charge the wait before this issue to its latest constraint."""
        begin = warp.ready
        if cycle <= begin:
            return
        limit, reason = max(self._constraints(warp, core))
        limit = min(cycle, max(limit, begin))
        self._log(begin, step.inst.address, reason, limit - begin)
        self._log(begin, step.inst.address, "not selected", cycle - limit)

    def _log(self, cycle, address, reason, cycles):
        if cycles > 0:
            self.stall_log.append((cycle, address, reason, cycles))


# ----------------------------------------------------------------------------
# Bounds, occupancy, estimate
# ----------------------------------------------------------------------------

def pipe_bounds(loop, machine, ctas):
    """Cycles per iteration that each resource alone needs (per SM, all CTAs)."""
    warps = loop.warps * ctas
    warps_per_core = math.ceil(warps / machine.sub_cores)
    per_warp = Counter()
    mio = l2 = 0.0
    for step in loop.steps:
        per_warp["issue"] += 1
        if step.interval:
            per_warp[step.pipe] += step.interval
        if step.pipe == "mio":
            mio += sum(max(machine.mio_accept_interval, w * machine.mio_wavefront_cycles)
                       for w in step.wavefronts)
            l2 += step.global_bytes * loop.warps / machine.l2_bytes_per_cycle
    bounds = {name: per_warp[name] * warps_per_core
              for name in ("issue", "tensor", "fma", "alu", "xu", "fp64") if per_warp[name]}
    bounds["mio"] = mio * ctas
    if l2:
        bounds["l2"] = l2 * ctas
    return bounds


def ctas_per_sm(machine, warps, registers, shared_bytes):
    """Resident CTAs per SM and the resource that limits them."""
    per_warp = math.ceil(registers * WARP / machine.register_unit) * machine.register_unit
    warps_by_registers = (machine.registers_per_sm // machine.sub_cores // per_warp
                          * machine.sub_cores)
    limits = {"registers": warps_by_registers // warps,
              "warps": machine.max_warps_per_sm // warps,
              "CTA slots": machine.max_ctas_per_sm}
    if shared_bytes:
        unit = machine.shared_unit
        limits["shared memory"] = machine.shared_bytes_per_sm // (
            math.ceil(shared_bytes / unit) * unit)
    limiter = min(limits, key=limits.get)
    if limits[limiter] < 1:
        raise UsageError(f"one CTA does not fit on an SM ({limiter}): {registers} registers, "
                         f"{warps} warps, {shared_bytes} B shared memory")
    return limits[limiter], limiter


def simulate(loop, machine, ctas, warmup=2, measured=4):
    """Run the loop and return the steady-state figures as a dictionary."""
    simulator = Simulator(loop, machine, ctas, warmup + measured)
    warps = simulator.run()
    begin = max(w.iteration_ends[warmup - 1] for w in warps)
    end = max(w.iteration_ends[-1] for w in warps)
    cycles = (end - begin) / measured
    bounds = pipe_bounds(loop, machine, ctas)
    window = [(a, r, n) for c, a, r, n in simulator.stall_log if begin <= c < end]
    return {
        "cycles_per_iteration": cycles,
        "cycles_per_cta_iteration": cycles / ctas,
        "bounds": bounds,
        "utilisation": {name: value / cycles for name, value in bounds.items()},
        "stalls": summarise_stalls(window, loop, measured * len(warps)),
    }


def summarise_stalls(window, loop, divisor):
    """Average stall cycles per warp and iteration, by reason and by address."""
    by_reason, by_place = Counter(), Counter()
    for address, reason, cycles in window:
        by_reason[reason] += cycles / divisor
        by_place[address, reason] += cycles / divisor
    text = {step.inst.address: step.inst.text for step in loop.steps}
    return {"by_reason": dict(by_reason.most_common()),
            "by_instruction": [
                {"address": f"0x{a:x}", "reason": r, "cycles": c, "instruction": text[a]}
                for (a, r), c in by_place.most_common()]}


# ----------------------------------------------------------------------------
# Report
# ----------------------------------------------------------------------------

def instruction_mix(loop):
    mix = Counter()
    for step in loop.steps:
        inst = step.inst
        width = next((m for m in inst.opcode[1:] if m in ("64", "128")), None)
        mix[inst.base + ("." + width if width else "")] += 1
    return dict(mix.most_common())


def estimate(function, options, machine):
    """Everything the report shows for one kernel."""
    warps = options.warps or (function.max_threads and math.ceil(function.max_threads / WARP))
    if not warps:
        raise UsageError(f"{function.name}: warps per CTA unknown, give --warps")
    registers = options.registers or function.registers or function.highest_register()
    shared = options.smem + function.static_shared
    ctas, limiter = ctas_per_sm(machine, warps, registers, shared)
    if options.ctas:
        ctas, limiter = options.ctas, "--ctas"
    bounds = options.loop or pick_hot_loop(function)
    for address in bounds:
        if address not in function.index_of:
            raise UsageError(f"no instruction at 0x{address:x} in {function.name}")
    loop = Loop(function, bounds, machine, warps, options)
    result = simulate(loop, machine, ctas, options.warmup, options.iterations)
    result.update({
        "function": function.name, "loop": [f"0x{b:x}" for b in bounds],
        "loop_bytes": bounds[1] - bounds[0] + 16,
        "warps_per_cta": warps, "ctas_per_sm": ctas, "occupancy_limit": limiter,
        "registers": registers, "shared_bytes": shared,
        "instructions_per_iteration": len(loop.steps), "mix": instruction_mix(loop),
        "shared_accesses_with_known_addresses": loop.known_addresses,
        "shared_accesses_assumed_conflict_free": loop.unknown_addresses,
        "bank_conflicts": {f"0x{a:x}": round(factor, 3)
                           for a, factor in sorted(loop.conflict_excess.items())},
    })
    return result


def format_report(result, top):
    lines = [
        f"kernel      {result['function']}",
        f"loop        {result['loop'][0]}..{result['loop'][1]}, "
        f"{result['instructions_per_iteration']} instructions executed, "
        f"{result['loop_bytes']} bytes",
        f"residency   {result['ctas_per_sm']} CTA/SM x {result['warps_per_cta']} warps "
        f"(limit: {result['occupancy_limit']}; {result['registers']} registers, "
        f"{result['shared_bytes']} B shared)",
        "mix         " + ", ".join(f"{n} {k}" for k, n in list(result["mix"].items())[:14]),
        f"addresses   {result['shared_accesses_with_known_addresses']} shared accesses resolved, "
        f"{result['shared_accesses_assumed_conflict_free']} assumed conflict-free, "
        f"{len(result['bank_conflicts'])} with bank conflicts",
        "",
        f"ESTIMATE    {result['cycles_per_iteration']:.0f} cycles per iteration "
        f"({result['ctas_per_sm']} CTA together)",
        "",
        "resource    bound (cycles)   busy"]
    for name, bound in sorted(result["bounds"].items(), key=lambda item: -item[1]):
        lines.append(f"  {name:<9} {bound:12.0f}   {100 * result['utilisation'][name]:5.1f} %")
    lines.append("")
    lines.append("stall cycles per warp and iteration")
    for reason, cycles in list(result["stalls"]["by_reason"].items())[:8]:
        lines.append(f"  {cycles:8.1f}  {reason}")
    lines.append("top stalled instructions")
    for entry in result["stalls"]["by_instruction"][:top]:
        lines.append(f"  {entry['cycles']:8.1f}  {entry['address']:>7}  {entry['reason']:<24} "
                     f"{entry['instruction']}")
    return "\n".join(lines)


def format_machine(machine):
    lines = []
    for name, (_default, origin, source) in MACHINE_TABLE.items():
        lines.append(f"{name:<24} {getattr(machine, name):>8}  {origin:<10} {source}")
    return "\n".join(lines)


# ----------------------------------------------------------------------------
# Self-check
# ----------------------------------------------------------------------------

def encode_listing(lines, loop_to=0):
    """A SASS listing from (text, stall, write_sb, read_sb, wait_mask) tuples."""
    out = ["Function : self_check"]
    for number, (text, stall, write_sb, read_sb, wait) in enumerate(lines):
        control = stall | 1 << 4 | write_sb << 5 | read_sb << 8 | wait << 11
        out.append(f"/*{number * 16:04x}*/ {text} ; /* 0x{0:016x} */\n"
                   f"/* 0x{control << 41:016x} */")
    out.append(f"/*{len(lines) * 16:04x}*/ @P0 BRA 0x{loop_to:x} ; /* 0x{0:016x} */\n"
               f"/* 0x{(5 | 1 << 4 | 7 << 5 | 7 << 8) << 41:016x} */")
    return "\n".join(out)


def check_cycles(lines, warps, **overrides):
    """Simulated cycles per iteration of a snippet that loops on itself."""
    options = build_parser().parse_args(["-"])
    normalise_options(options)
    machine = Machine({"taken_branch_penalty": 5, **overrides})
    function = parse_sass(encode_listing(lines))[0]
    loop = Loop(function, pick_hot_loop(function), machine, warps, options)
    return simulate(loop, machine, 1, 4, 8)["cycles_per_iteration"]


def self_check():
    """Tiny loops whose cycle counts follow by hand from the machine table."""
    no = NO_BARRIER
    failures = []

    def expect(name, got, wanted, tolerance=0.02):
        good = abs(got - wanted) <= tolerance * max(1, abs(wanted))
        print(f"{'ok  ' if good else 'FAIL'} {name}: got {got:g}, expected {wanted:g}")
        if not good:
            failures.append(name)

    ffma = ("FFMA R1, R2, R3, R1", 4, no, no, 0)
    expect("dependent FFMA chain, 1 warp (stall counts)",
           check_cycles([ffma] * 16, 1), 16 * 4 + 5)
    expect("FFMA throughput, 4 warps on one sub-core",
           check_cycles([("FFMA R1, R2, R3, R1", 1, no, no, 0)] * 32, 16), 4 * 32 * 2, 0.05)
    hmma = [(f"HMMA.884.F32.F32.STEP{s} R{4 + 2 * s}, R0.ROW, R2.COL, R{4 + 2 * s}", 2, no, no, 0)
            for s in range(4)]
    expect("HMMA throughput, 2 warps per sub-core", check_cycles(hmma * 8, 8), 2 * 32 * 2, 0.05)
    chained = [hmma[0][:4] + (32,)] + hmma[1:3] + [(hmma[3][0], 1, 5, no, 0)]
    expect("HMMA groups chained by a scoreboard",
           check_cycles(chained * 8, 1), 8 * (6 + Machine().hmma_latency), 0.05)
    lds = ("LDS.U.64 R2, [RZ]", 1, no, no, 0)
    expect("LDS.64 of one address: half the wavefronts", check_cycles([lds] * 32, 8), 8 * 32, 0.05)
    strided = [("S2R R0, SR_TID.X", 2, no, no, 0), ("IMAD.SHL.U32 R0, R0, 0x8, RZ", 5, no, no, 0)]
    expect("LDS.64 stride 8 B: 2 wavefronts",
           check_cycles(strided + [("LDS.U.64 R2, [R0]", 1, no, no, 0)] * 32, 8), 8 * 64, 0.06)
    strided[1] = ("IMAD.SHL.U32 R0, R0, 0x80, RZ", 5, no, no, 0)
    expect("LDS.32 stride 128 B: 32-way bank conflict",
           check_cycles(strided + [("LDS.U R2, [R0]", 1, no, no, 0)] * 4, 4), 4 * 4 * 32, 0.06)
    barrier = [("BAR.SYNC 0x0", 5, no, no, 0)]
    expect("barrier round trip, 1 warp", check_cycles(barrier, 1), Machine().barrier_latency + 6)
    expect("control fields", parse_sass(encode_listing(
        [("NOP", 11, 3, 2, 0b100101)]))[0].instructions[0].wait_mask, 0b100101)
    expect("CTAs per SM, 255 registers x 8 warps", ctas_per_sm(Machine(), 8, 255, 45568)[0], 1)
    expect("CTAs per SM, 64 registers x 8 warps, 32 KiB",
           ctas_per_sm(Machine(), 8, 64, 32768)[0], 3)
    print("self-check " + ("FAILED: " + ", ".join(failures) if failures else "passed"))
    return 1 if failures else 0


# ----------------------------------------------------------------------------
# Command line
# ----------------------------------------------------------------------------

def parse_range(text):
    try:
        start, end = (int(part, 16) for part in text.split("-"))
    except ValueError:
        raise argparse.ArgumentTypeError("expected START-END in hex, e.g. 1750-5530") from None
    return start, end


def parse_lds_factor(text):
    """'1.5' for every LDS/STS, or '1e10=2' for one address."""
    address, _, factor = text.rpartition("=")
    try:
        return (int(address, 16) if address else None), float(factor)
    except ValueError:
        raise argparse.ArgumentTypeError("expected FACTOR or ADDRESS=FACTOR") from None


def parse_latency(text):
    address, _, cycles = text.partition("=")
    try:
        return int(address, 16), float(cycles)
    except ValueError:
        raise argparse.ArgumentTypeError("expected ADDRESS=CYCLES") from None


def parse_setting(text):
    name, _, value = text.partition("=")
    try:
        return name, float(value) if "." in value else int(value)
    except ValueError:
        raise argparse.ArgumentTypeError("expected NAME=NUMBER") from None


def build_parser():
    parser = argparse.ArgumentParser(
        description="Estimate cycles per iteration of an sm_70 (V100) hot loop from its SASS.",
        epilog="Exit status: 0 ok, 1 self-check failed, 2 usage or input error, "
               "3 slower than --baseline allows.")
    parser.add_argument("input", nargs="?",
                        help=".o, .so, .cubin, or a saved cuobjdump -sass text")
    select = parser.add_argument_group("what to analyse")
    select.add_argument("--function", metavar="REGEX",
                        help="kernels to analyse (default: all with a loop)")
    select.add_argument("--loop", type=parse_range, metavar="START-END",
                        help="loop addresses in hex (default: the loop with most HMMA)")
    select.add_argument("--list", action="store_true", help="list kernels and loops, then stop")
    select.add_argument("--taken", type=lambda t: int(t, 16), action="append", default=[],
                        metavar="ADDR", help="this forward conditional branch is taken")
    launch = parser.add_argument_group("launch")
    launch.add_argument("--warps", type=int, help="warps per CTA (default: launch bounds)")
    launch.add_argument("--smem", type=int, default=0,
                        help="dynamic shared memory per CTA, bytes")
    launch.add_argument("--registers", type=int,
                        help="registers per thread (default: from the file)")
    launch.add_argument("--ctas", type=int, help="CTAs per SM (default: occupancy)")
    model = parser.add_argument_group("model")
    model.add_argument("--lds-factor", type=parse_lds_factor, action="append", default=[],
                       metavar="[ADDR=]F", help="override shared-memory bank-conflict factor")
    model.add_argument("--latency", type=parse_latency, action="append", default=[],
                       metavar="ADDR=CYCLES", help="latency of one load, e.g. 28 for an L1 hit")
    model.add_argument("--set", type=parse_setting, action="append", default=[],
                       metavar="NAME=VALUE", help="override a machine parameter")
    model.add_argument("--warmup", type=int, default=2, help="iterations to drop (default 2)")
    model.add_argument("--iterations", type=int, default=4,
                       help="iterations to measure (default 4)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--top", type=int, default=12, help="stalled instructions to list")
    output.add_argument("--baseline", metavar="JSON", help="earlier --json output to compare with")
    output.add_argument("--tolerance", type=float, default=5.0,
                        help="allowed slow-down against --baseline, percent (default 5)")
    parser.add_argument("--cuobjdump", default=os.environ.get("CUOBJDUMP", "cuobjdump"),
                        help="path of cuobjdump (default: $CUOBJDUMP or from PATH)")
    parser.add_argument("--show-machine", action="store_true", help="print the machine table")
    parser.add_argument("--self-check", action="store_true", help="run the built-in checks")
    return parser


def list_kernels(functions):
    for function in functions:
        print(function.name)
        for loop in find_loops(function):
            body = loop_body(function, loop)
            print(f"    {loop[0]:x}-{loop[1]:x}  {len(body)} instructions, "
                  f"{count_base(function, loop, 'HMMA')} HMMA")


def select_functions(functions, options):
    if options.function:
        chosen = [f for f in functions if re.search(options.function, f.name)]
    else:
        chosen = [f for f in functions if find_loops_excluding_spin(f)]
    if not chosen:
        raise UsageError("no kernel matches (see --list)")
    return chosen


def find_loops_excluding_spin(function):
    return [loop for loop in find_loops(function) if loop[0] != loop[1]]


def compare_with_baseline(results, path, tolerance):
    """Print the change against an earlier run; True when something got slower."""
    with open(path, encoding="utf-8") as stream:
        baseline = {r["function"]: r["cycles_per_cta_iteration"] for r in json.load(stream)}
    slower = False
    for result in results:
        before = baseline.get(result["function"])
        if before is None:
            print(f"no baseline for {result['function']}", file=sys.stderr)
            continue
        change = 100 * (result["cycles_per_cta_iteration"] / before - 1)
        slower |= change > tolerance
        print(f"{change:+6.2f} %  {result['function']}", file=sys.stderr)
    return slower


def normalise_options(options):
    """Turn the repeatable options into sets and dictionaries."""
    options.taken = set(options.taken)
    options.lds_factor = dict(options.lds_factor)
    options.latency = dict(options.latency)


def run(options):
    machine = Machine(dict(options.set))
    if options.show_machine:
        print(format_machine(machine))
        return 0
    if not options.input:
        raise UsageError("no input file (see --help)")
    normalise_options(options)
    functions = load_functions(options.input, options.cuobjdump)
    if options.list:
        list_kernels(functions)
        return 0
    chosen = select_functions(functions, options)
    results = [estimate(function, options, machine) for function in chosen]
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        print("\n\n".join(format_report(result, options.top) for result in results))
    if options.baseline and compare_with_baseline(results, options.baseline, options.tolerance):
        return 3
    return 0


def main():
    options = build_parser().parse_args()
    if options.self_check:
        return self_check()
    try:
        return run(options)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (UsageError, OSError) as error:
        print(f"sm70sim: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
