# SPDX-License-Identifier: Apache-2.0
"""The state of one CTA: registers of all threads side by side, with what nobody wrote yet.

Registers are rows of a [register, thread] table of 32-bit words, so an instruction is a few
NumPy operations over all threads. A mask of active threads is a bool array, or None when every
thread is active (the common case, and faster).

Validity: each row has a shadow that says which threads wrote it. An unwritten value may be
copied and combined; what depends on it stays unwritten. Instructions that move bits (PRMT, LOP3,
MOV, SHF) keep apart which bits were written. It is a finding where it matters:
as an address, as a condition of a branch or a guard, and as data that leaves for global memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.findings import Finding, Findings, Kind, Site

if TYPE_CHECKING:
    from patchctl.emulator.localmem import LocalMemory
    from patchctl.emulator.memory import GlobalMemory
    from patchctl.emulator.shared import SharedMemory

WARP = 32

Words = NDArray[np.uint32]
Mask = NDArray[np.bool_]
Active = Mask | None
Known = Mask | Literal[True]
"""Which threads' values were written: True for all."""
Bits = Words | Literal[True]
"""Which bits of each thread's value were written: True for all."""
_ALL = np.uint32(0xFFFFFFFF)


class EmulatorError(Exception):
    """The program asks for something that is not modelled; the message names it."""


@dataclass(frozen=True)
class Launch:
    """How a kernel is started. Sizes in threads, CTAs and bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic plus static shared memory."""
    constants: dict[int, bytes] = field(default_factory=dict)
    """Constant banks; bank 0 holds launch facts and parameters (`sass/constants.py`)."""
    parameters: bytes = b""
    """The kernel's parameters alone, as PTX addresses them."""

    @property
    def threads(self) -> int:
        x, y, z = self.block
        return x * y * z


class Cta:
    """One CTA while it runs. `threads` is rounded up to whole warps; the rest never lives."""

    def __init__(
        self,
        launch: Launch,
        index: tuple[int, int, int],
        registers: int,
        predicates: int,
        memory: GlobalMemory,
        shared: SharedMemory,
        local: LocalMemory,
        findings: Findings,
    ) -> None:
        self.launch = launch
        self.index = index
        self.memory = memory
        self.shared = shared
        self.local = local
        self.findings = findings
        self.warps = -(-launch.threads // WARP)
        self.threads = self.warps * WARP
        self.tid = np.arange(self.threads, dtype=np.uint32)
        self.lane = self.tid % np.uint32(WARP)
        self.warp_base = (self.tid - self.lane).astype(np.int64)
        self.alive: Mask = np.arange(self.threads) < launch.threads
        self.regs: Words = np.full((registers, self.threads), 0xFFFFFFFF, np.uint32)
        self.valid: Mask = np.zeros((registers, self.threads), bool)
        self.all_valid = [False] * registers
        self.partial: dict[int, Words] = {}
        """Registers of which some bits were written: which ones, per thread."""
        self.preds: Mask = np.zeros((predicates, self.threads), bool)
        self.pred_valid: Mask = np.zeros((predicates, self.threads), bool)
        self.pred_all_valid = [False] * predicates
        self.convergence: Words = np.zeros((16, self.threads), np.uint32)
        """Per thread the lanes that each convergence barrier (B0..) waits for."""
        self.reduced: Words = np.zeros(self.threads, np.uint32)
        """Per thread the result of the last barrier that reduced a predicate."""
        self.site = Site("", 0, "")

    # -- registers

    def put(
        self, row: int, value: NDArray[np.generic], active: Active, known: Known = True
    ) -> None:
        """Write a 32-bit register of the active threads; `value` may have length 1."""
        if value.dtype != np.uint32:
            value = value.view(np.uint32)
        if row in self.partial:
            if active is None:
                del self.partial[row]
            else:
                self.partial[row] = np.where(active, np.uint32(0), self.partial[row])
        if active is None:
            self.regs[row] = value
            if known is True:
                if not self.all_valid[row]:
                    self.valid[row] = True
                    self.all_valid[row] = True
            else:
                self.valid[row] = known
                self.all_valid[row] = False
            return
        np.copyto(self.regs[row], value, where=active)
        if known is True:
            if not self.all_valid[row]:
                self.valid[row] |= active
                self.all_valid[row] = bool(self.valid[row].all())
        else:
            np.copyto(self.valid[row], known, where=active)
            self.all_valid[row] = False

    def put_bits(self, row: int, value: Words, active: Active, bits: Bits) -> None:
        """Write a register of which only `bits` are known."""
        if bits is True:
            self.put(row, value, active)
            return
        before = self.known_bits(row)
        self.put(row, value, active, bits == _ALL)
        if active is not None:
            bits = np.where(active, bits, _ALL if before is True else before)
        if not self.all_valid[row] and (bits != 0).any():
            self.partial[row] = np.array(np.broadcast_to(bits, (self.threads,)))

    def known_bits(self, row: int) -> Bits:
        """Which bits of a register were written."""
        if self.all_valid[row]:
            return True
        some = self.partial.get(row, np.zeros(1, np.uint32))
        return np.where(self.valid[row], _ALL, some)

    def known(self, *rows: int) -> Known:
        """Which threads have written all of `rows`."""
        result: Known = True
        for row in rows:
            if not self.all_valid[row]:
                result = self.valid[row] if result is True else result & self.valid[row]
        return result if result is True else np.array(result)

    def put_pred(self, row: int, value: Mask, active: Active, known: Known = True) -> None:
        """Write a predicate of the active threads."""
        if active is None:
            self.preds[row] = value
            self.pred_valid[row] = known
        else:
            np.copyto(self.preds[row], value, where=active)
            np.copyto(self.pred_valid[row], known, where=active)
        self.pred_all_valid[row] = known is True and (
            active is None or bool(self.pred_valid[row].all())
        )

    def pred_known(self, *rows: int) -> Known:
        result: Known = True
        for row in rows:
            if not self.pred_all_valid[row]:
                result = self.pred_valid[row] if result is True else result & self.pred_valid[row]
        return result if result is True else np.array(result)

    # -- findings

    def note(
        self, kind: Kind, threads: Mask, detail: str, tensor: str = "", count: int | None = None
    ) -> None:
        """Record a finding of the marked threads at the instruction that runs now."""
        marked = np.flatnonzero(threads)
        self.findings.add(
            Finding(
                kind=kind,
                site=self.site,
                cta=self.index,
                thread=int(marked[0]) if marked.size else 0,
                tensor=tensor,
                detail=detail,
                count=int(marked.size) if count is None else count,
            )
        )

    def need(self, known: Known, active: Active, what: str) -> None:
        """A finding when an active thread uses a value here that it never wrote."""
        if known is True:
            return
        missing = ~np.broadcast_to(np.asarray(known), (self.threads,)) & self.alive
        if active is not None:
            missing = missing & active
        if missing.any():
            self.note(Kind.UNINITIALISED_REGISTER, missing, f"{what} was never written")

    def mask(self, active: Active) -> Mask:
        """The active threads as an array."""
        return self.alive if active is None else active

    def watch_nan(self, result: NDArray[Any], active: Active, *sources: NDArray[Any]) -> None:
        """A finding when a NaN appears that no source had."""
        bad = np.isnan(result)
        if not bad.any():
            return
        for source in sources:
            bad = bad & ~np.isnan(source)
        bad = np.broadcast_to(bad, (self.threads,)) & self.mask(active)
        if bad.any():
            self.note(Kind.NAN_BORN, bad, "NaN from operands that are none")
