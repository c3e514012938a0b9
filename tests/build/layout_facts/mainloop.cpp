// SPDX-License-Identifier: Apache-2.0
// The stream of chunks of K and V, masks, splits, and the scaling of P.
#include <algorithm>
#include <cmath>
#include <vector>

#include "sm70/mask.h"
#include "sm70/softmax.h"
#include "tiles.h"

using namespace flash::sm70;
using namespace facts;

namespace {

template <typename Traits>
void chunk_stream_visits_every_chunk_once_and_in_order() {
    constexpr int kTiles = 4;
    std::vector<int> next_k(kTiles + 1), next_v(kTiles + 1);
    for (int position = 0; position < kTiles * Traits::kChunks; ++position) {
        const auto chunk = Traits::chunk_at(position);
        if (chunk.tile < 0) {
            expect(Traits::is_held_back(position) && !chunk.is_k && position < Traits::kChunks,
                "only the first held-back chunks have no tile");
            continue;
        }
        expect_equal(chunk.index, chunk.is_k ? next_k[chunk.tile]++ : next_v[chunk.tile]++,
            "order of the chunks");
        if (!chunk.is_k) {
            expect_equal(next_k[chunk.tile], Traits::kKChunks, "K of a tile comes before its V");
        }
        expect_equal(Traits::slot_offset(position), Traits::slot_offset(position + Traits::kChunks),
            "slot of a position");
    }
    for (int tile = 0; tile < kTiles - 1; ++tile) {
        expect_equal(next_v[tile], Traits::kVChunks, "V chunks of a tile");
    }
}

// The slot of a chunk is written while other warps may still read what was in it, and read while
// others may still write it, unless a barrier is between. A chunk is stored, and another one read,
// with as many barriers behind them as the positions before have.
template <typename Traits>
void ring_slots_change_hands_at_a_barrier() {
    constexpr int kAhead = Traits::kChunksPerRegion;
    const auto barriers_before = [](int position) {
        int count = 0;
        for (int p = 0; p < position; ++p) { count += Traits::has_barrier(p % Traits::kChunks); }
        return count;
    };
    for (int position = kAhead; position < 3 * Traits::kChunks; ++position) {
        expect_equal(Traits::slot_offset(position + kAhead), Traits::slot_offset(position - kAhead),
            "slot that is filled");
        expect(barriers_before(position) > barriers_before(position - kAhead),
            "a barrier between the last read of a slot and the next store");
        expect(barriers_before(position + kAhead) > barriers_before(position),
            "a barrier between the store of a chunk and its first read");
    }
}

void key_ranges_are_bottom_right_aligned() {
    constexpr int kNone = 1 << 30;
    for (int seqlen_q = 1; seqlen_q < 6; ++seqlen_q) {
        for (int seqlen_k = 0; seqlen_k < 6; ++seqlen_k) {
            const int shift = seqlen_k - seqlen_q;
            for (int position = 0; position < seqlen_q; ++position) {
                expect_equal(key_begin(position, shift, kNone), 0, "first key without a window");
                expect_equal(
                    key_end(position, shift, seqlen_k, kNone), seqlen_k, "keys without a window");
                for (int window = 0; window < 4; ++window) {
                    for (int key = 0; key < seqlen_k; ++key) {
                        // both counted from the last corner
                        const int distance = (seqlen_q - 1 - position) - (seqlen_k - 1 - key);
                        expect((key < key_end(position, shift, seqlen_k, window)) ==
                                   (distance <= window),
                            "right window");
                        expect((key >= key_begin(position, shift, window)) == (distance >= -window),
                            "left window");
                    }
                }
            }
        }
    }
}

void splits_divide_the_tiles_of_a_range() {
    constexpr int kBlockN = 64;
    for (const int begin : {0, 5}) {
        for (int keys = 0; keys < 6 * kBlockN; keys += 7) {
            for (int splits = 1; splits < 9; ++splits) {
                int next = begin, least = keys, most = 0;
                for (int split = 0; split < splits; ++split) {
                    const KeyRange part =
                        split_range({begin, begin + keys}, kBlockN, splits, split);
                    const int size = part.empty() ? 0 : part.end - part.begin;
                    least = std::min(least, (size + kBlockN - 1) / kBlockN);
                    most = std::max(most, (size + kBlockN - 1) / kBlockN);
                    if (part.empty()) { continue; }
                    expect_equal(part.begin, next, "a part starts where the last one ended");
                    expect_equal((part.begin - begin) % kBlockN, 0, "a part starts with a tile");
                    next = part.end;
                }
                expect_equal(next, begin + keys, "end of the last part");
                expect(most - least <= 1, "parts differ by a tile at most");
            }
        }
    }
}

void scaled_probabilities_fit_fp16() {
    const float largest_half = 65504;
    expect(std::exp2(kMaxLog2P) <= largest_half, "the largest P is an fp16 number");
    expect(std::exp2(kMaxLog2P + 1) > largest_half, "P is scaled up as far as fp16 goes");
    expect(kNewLog2P > 0 && kNewLog2P < kMaxLog2P, "a new offset leaves room for a lag");
}

const Register kChecks = {
    CHECK_TILES(chunk_stream_visits_every_chunk_once_and_in_order),
    CHECK_TILES(ring_slots_change_hands_at_a_barrier),
    CHECK(key_ranges_are_bottom_right_aligned),
    CHECK(splits_divide_the_tiles_of_a_range),
    CHECK(scaled_probabilities_fit_fp16),
};

}  // namespace
