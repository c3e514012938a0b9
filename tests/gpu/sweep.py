# SPDX-License-Identifier: Apache-2.0
"""Runs combinations against float64 and PyTorch's fp16 attention. As a program, those given:

VLLM_FA2_SM70_LIBRARY=.../_vllm_fa2_C.abi3.so python3 tests/gpu/sweep.py 17 203
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import Any

import attention
import storage
import torch
from attention import DEVICE, Scoring, cumulative, int32, randn
from combinations import Case, cases
from errors import Errors, complaints, errors, lse_error
from storage import Pages, Rows, bits
from torch import Tensor


@dataclass(frozen=True)
class Result:
    ours: Errors
    theirs: Errors
    lse: float
    complaints: list[str]


@dataclass
class Keys:
    """K and V of a case in memory: the tokens' `rows`, those that the call appends included."""

    k: Tensor
    v: Tensor
    memory: tuple[Tensor, ...]
    rows: Rows
    arguments: dict[str, Any] = field(default_factory=dict)


def run(case: Case) -> Result:
    return Call(case).check()


class Call:
    """One call: what it gets, and what it should have done."""

    def __init__(self, case: Case) -> None:
        self.case, self.rng = case, random.Random(case.seed)
        self.varlen = case.operator == "varlen_fwd"
        heads, self.heads_k = case.head_counts
        self.scoring = Scoring(
            causal="causal" in case.mask,
            window=case.window,
            softcap=case.softcap,
            slopes=self._slopes(heads, len(case.lengths_q)),
        )
        self.queries = randn(
            len(case.lengths_q), max(case.lengths_q), heads, case.head_dim, seed=case.seed
        )
        blocks, rows = self._query_layout()
        self.out_rows = rows
        self.q, self.q_memory = storage.query_storage(*blocks, heads, case.head_dim, case.q)
        rows.put(self.q, self.queries)
        self.out, self.out_memory = storage.query_storage(*blocks, heads, case.head_dim, case.out)
        self.keys = self._keys()
        shape = (len(case.lengths_k), max(case.lengths_k), self.heads_k, case.head_dim)
        self.values = [randn(*shape, seed=case.seed + i) for i in (1, 2)]
        cached = storage.between(shape[1], [0] * shape[0], case.cached)
        for tensor, values in zip((self.keys.k, self.keys.v), self.values, strict=True):
            self.keys.rows.of(cached).put(tensor, values)
        self.appended = self.keys.rows.of(self.keys.rows.used & ~cached)
        self.arguments = self.scoring.arguments() | {
            "num_splits": case.num_splits,
            "out": None if case.out == "allocated" else self._squeeze(self.out),
        }
        if case.appended:
            self._append()

    def check(self) -> Result:
        case = self.case
        before = [bits(memory).clone() for memory in (self.q_memory, *self.keys.memory)]
        out, lse = self.launch()
        lengths = torch.tensor([case.lengths_q, case.lengths_k], device=DEVICE).T
        tokens = (self.queries, *self.values, self.scoring, lengths)
        expected, expected_lse = attention.reference(*tokens)
        used = self.out_rows.used
        seen = used & (expected_lse > -torch.inf).any(dim=1)
        got = self.out_rows.take(out[None] if self.varlen else out)
        ours = errors(got[used], expected[used])
        theirs = errors(attention.torch_attention(*tokens)[seen], expected[seen])
        found = complaints(ours, theirs, case.head_dim)
        if self.varlen:  # [heads, tokens]
            lse = self.out_rows.take(lse.T[None, :, :, None]).squeeze(-1).transpose(1, 2)
            lse = lse.masked_fill(~used[:, None], -torch.inf)
        error, complaint = lse_error(lse, expected_lse, case.softcap)
        found += complaint
        if bool((bits(got)[used & ~seen] & 0x7FFF).any()):
            found.append("rows that see no key are not zero")
        found += self._memory(out, before)
        return Result(ours, theirs, error, found)

    def launch(self) -> tuple[Tensor, Tensor]:
        case, keys = self.case, self.keys
        if not self.varlen:
            return attention.kvcache(self.q, keys.k, keys.v, **self.arguments, **keys.arguments)
        paged = case.page != 0
        k, v = (keys.k, keys.v) if paged else (keys.k[0], keys.v[0])
        return attention.varlen(
            self.q[0], k, v, cumulative(case.lengths_q), max_seqlen_q=max(case.lengths_q),
            **self.arguments, **keys.arguments,
        )  # fmt: skip

    def _squeeze(self, tensor: Tensor) -> Tensor:
        return tensor[0] if self.varlen else tensor

    def _slopes(self, heads: int, batch: int) -> Tensor | None:
        if self.case.alibi == "none":
            return None
        shape = (heads,) if self.case.alibi == "heads" else (batch, heads)
        return 2.0 ** (-1 - 6 * torch.rand(shape, device=DEVICE))

    def _query_layout(self) -> tuple[tuple[int, int], Rows]:
        lengths = self.case.lengths_q
        if not self.varlen:
            return (len(lengths), lengths[0]), storage.in_blocks(
                list(range(len(lengths))), [0] * len(lengths), lengths
            )
        starts = cumulative(lengths).tolist()
        return (1, starts[-1] + 5), storage.in_turn(starts[:-1], lengths)  # 5 belong to nobody

    def _keys(self) -> Keys:
        case, given = self.case, "used" in self.case.lengths
        ends = [pad + length for pad, length in zip(case.leftpad, case.lengths_k, strict=True)]
        slack = [self.rng.choice([0, 1, 50]) if given else 0 for _ in ends]
        capacities = [end + more for end, more in zip(ends, slack, strict=True)]
        lengths = {"leftpad_k": int32(case.leftpad)} if "leftpad" in case.lengths else {}
        if given and self.varlen:
            lengths["seqused_k"] = int32(ends)
        elif given:
            lengths["seqlens_k"] = int32([end - case.appended for end in ends])
        if case.page:
            keys = self._paged(ends, max(capacities))
        elif self.varlen:
            starts = cumulative(capacities)
            keys = self._stored(1, int(starts[-1]) + 3, storage.in_turn(
                [start + pad for start, pad in zip(starts.tolist(), case.leftpad, strict=False)],
                case.lengths_k,
            ))  # fmt: skip
            keys.arguments = {"cu_seqlens_k": starts, "max_seqlen_k": max(capacities)}
        else:
            batch = len(ends)
            entries = list(range(batch))
            if case.cache_batch_idx:
                entries = self.rng.sample(range(batch + 2), batch)
                lengths["cache_batch_idx"] = int32(entries)
            rows = storage.in_blocks(entries, case.leftpad, case.lengths_k)
            keys = self._stored(batch + 2 * case.cache_batch_idx, max(capacities), rows)
        keys.arguments |= lengths
        return keys

    def _paged(self, lengths: list[int], capacity: int) -> Keys:
        size = self.case.page
        pages = Pages.shuffled(self.rng, size, lengths, -(-capacity // size))
        keys = self._stored(pages.count, size, storage.in_pages(pages.table, size, lengths))
        keys.arguments["block_table"] = pages.table
        if self.varlen:  # beside lengths of their own, vLLM passes zeros here
            given = "used" in self.case.lengths
            starts = cumulative([0] * len(lengths) if given else lengths)
            keys.arguments |= {"cu_seqlens_k": starts, "max_seqlen_k": max(lengths)}
        return keys

    def _stored(self, blocks: int, size: int, rows: Rows) -> Keys:
        kind = "paged" if self.case.page and self.case.kv == "interleaved" else self.case.kv
        k, v, *memory = storage.key_storage(blocks, size, self.heads_k, self.case.head_dim, kind)
        return Keys(k, v, tuple(memory), rows)

    def _append(self) -> None:
        """The new tokens of K and V, and Q as the kernel turns it."""
        case = self.case
        shape = (len(case.cached), case.appended, self.heads_k, case.head_dim)
        new = []
        for values in self.values:
            tensor, _ = storage.query_storage(*shape, case.q)
            tensor.copy_(values[self.appended.used].view(shape))
            new.append(tensor)
        self.arguments |= {"k": new[0], "v": new[1]}
        if not case.rotary_dim:
            return
        capacity = self.keys.k.shape[1]
        if case.page:
            capacity *= self.keys.arguments["block_table"].shape[1]
        capacity += case.lengths_q[0]  # queries may stand behind the last key
        angle = torch.rand(capacity, case.rotary_dim // 2, device=DEVICE) * 6.3
        cos, sin = angle.cos().half(), angle.sin().half()
        interleaved = "interleaved" in case.append
        self.arguments |= {
            "rotary_cos": cos, "rotary_sin": sin, "is_rotary_interleaved": interleaved,
        }  # fmt: skip
        # places count from the start of the cache; without a mask all queries have the first one
        first = torch.tensor([case.leftpad, case.cached], device=DEVICE).sum(0)[:, None]
        steps = torch.arange(max(shape[1], case.lengths_q[0]), device=DEVICE)
        q_steps = steps[: case.lengths_q[0]] * (self.scoring.bounds() != (None, None))
        turn = {"cos": cos, "sin": sin, "interleaved": interleaved}
        self.queries = storage.rotate(self.queries, places=first + q_steps, **turn).half()
        self.exact = storage.rotate(new[0], places=first + steps[: shape[1]], **turn)
        self.values[0][self.appended.used] = self.exact.half().flatten(0, 1)

    def _memory(self, out: Tensor, before: list[Tensor]) -> list[str]:
        """What was written that should not be, and what was appended wrongly."""
        found = []
        q_before, *keys_before = before
        if not torch.equal(bits(self.q_memory), q_before):
            found.append("q was changed")
        if self.case.out != "allocated":
            if out.data_ptr() != self._squeeze(self.out).data_ptr():
                found.append("the result is not in `out`")
            self.out_rows.put(bits(self.out), torch.full_like(bits(self.queries), storage.POISON))
            if not bool((bits(self.out_memory) == storage.POISON).all()):
                found.append("memory beside the rows of `out` was written")
        if self.case.appended:
            at = self.appended
            written = self.keys.k[at.block[at.used], at.row[at.used]]
            if self.case.rotary_dim:
                good = bool(storage.is_rounded(written, self.exact.flatten(0, 1)).all())
            else:
                good = torch.equal(bits(written), bits(self.values[0][at.used]))
            new_v = self.keys.v[at.block[at.used], at.row[at.used]]
            if not good or not torch.equal(bits(new_v), bits(self.values[1][at.used])):
                found.append("what was appended to the cache is wrong")
            poison = torch.full_like(bits(self.values[0]), storage.POISON)
            for cache in (self.keys.k, self.keys.v):
                at.put(bits(cache), poison)
        for memory, old in zip(self.keys.memory, keys_before, strict=True):
            if not torch.equal(bits(memory), old):
                found.append("memory beside what is appended to the cache was written")
        return found


def main() -> int:
    reason = attention.why_not_loadable()
    if reason:
        print(f"cannot run: {reason}", file=sys.stderr)
        return 1
    attention.load_library()
    every, failed = cases(), 0
    for index in map(int, sys.argv[1:]):
        result = run(every[index])
        print(f"{every[index]}\n  {result}")
        failed += bool(result.complaints)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
