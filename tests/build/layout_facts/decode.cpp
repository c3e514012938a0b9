// SPDX-License-Identifier: Apache-2.0
// The decode kernel, where K and V go from global memory straight into operands: who owns what, and
// Q and O in shared memory.
#include <set>
#include <utility>

#include "decode_instances.h"
#include "model.h"

using namespace flash::sm70;
using namespace facts;

namespace {

////////////////////////////////////////////////////////////////////////////////////////////////////
// Ownership

void decode_loads_are_consecutive_bytes() {
    std::set<std::pair<int, int>> k_groups, v_groups;
    for (int lane = 0; lane < kWarpSize; ++lane) {
        const int k_key = decode_k_key(lane), k_group = decode_k_group(lane);
        const int v_key = v_operand_key(lane), v_group = v_operand_group(lane);
        expect(k_key >= 0 && k_key < kKLoadKeys && k_group >= 0 && k_group < kKLoadCols / 8,
            "a load of K is 8 keys x 64 consecutive bytes");
        expect(v_key >= 0 && v_key < kVLoadKeys && v_group >= 0 && v_group < kVLoadCols / 8,
            "a load of V is 4 keys x 128 consecutive bytes");
        k_groups.insert({k_key, k_group});
        v_groups.insert({v_key, v_group});
    }
    expect_equal(k_groups.size(), kWarpSize, "groups in a load of K");
    expect_equal(v_groups.size(), kWarpSize, "groups in a load of V");
}

// Row and key of each of a lane's two scores are those of elements of its own C fragment.
void decode_scores_have_one_owner() {
    std::set<std::pair<int, int>> scores;
    for (int lane = 0; lane < kWarpSize; ++lane) {
        const int kept = ((lane >> 2) & 1) << 1 | ((lane >> 3) & 1) << 2;
        for (int i = 0; i < 2; ++i) {
            const Coord c = c_coord(lane, kept | i);
            expect_equal(decode_score_row(lane), c.row, "row of a score in its lane's C");
            expect_equal(decode_score_key(lane, i), c.col, "key of a score in its lane's C");
            expect(scores.insert({c.row, c.col}).second, "a score with two owners");
        }
        expect_equal(decode_score_key(lane, 0) % 2, 0, "first key of a lane");
    }
    expect_equal(scores.size(), 8 * kKLoadKeys, "scores with an owner");
}

void decode_row_peers_are_the_lanes_of_a_row() {
    constexpr int kPeers = decode_row_peer_mask(0) | decode_row_peer_mask(1);
    for (int lane = 0; lane < kWarpSize; ++lane) {
        int leaders = 0;
        for (int other = 0; other < kWarpSize; ++other) {
            const bool are_peers = ((lane ^ other) | kPeers) == kPeers;
            expect(are_peers == (decode_score_row(lane) == decode_score_row(other)),
                "a reduction reaches other lanes than those of the row");
            leaders += are_peers && is_decode_row_leader(other);
        }
        expect_equal(leaders, 1, "leaders of a row");
        expect_equal(decode_score_row(decode_row_lane(decode_score_row(lane))),
            decode_score_row(lane), "row of the lane that stands for a row");
        for (int row = 0; row < 2; ++row) {
            expect_equal(decode_score_row(decode_score_lane(lane, row)), acc_row(lane, row),
                "row of the scores that rescale a row of O");
        }
    }
}

void decode_p_comes_from_the_lanes_of_its_row() {
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int step = 0; step < 2; ++step) {
            for (int pair = 0; pair < 2; ++pair) {
                const int source = decode_p_source(lane, step, pair);
                expect_equal(
                    decode_score_row(source), a_row_coord(lane, 0).row, "row of P's A operand");
                expect_equal(decode_score_key(source, 0), kVLoadKeys * step + 2 * pair,
                    "key of P's A operand");
            }
        }
    }
}

////////////////////////////////////////////////////////////////////////////////////////////////////
// Shared memory

template <typename Traits>
void decode_q_lies_as_it_is_loaded() {
    using LayoutQ = typename Traits::LayoutQ;
    std::set<int> offsets;
    for (int row = 0; row < Traits::kRows; ++row) {
        for (int group = 0; group < Traits::kHeadDim / 8; ++group) {
            const int offset = LayoutQ::offset(row, group);
            expect(offset % kGroupBytes == 0 && offset >= 0 && offset < Traits::kQBytes,
                "Q: offset out of place");
            offsets.insert(offset);
        }
    }
    expect_equal(offsets.size() * kGroupBytes, Traits::kQBytes, "Q: bytes used");
    for (int m = 0; m < Traits::kBlocksM; ++m) {
        for (int load = 0; load < Traits::kKLoads; ++load) {
            const auto address = [=](int lane) {
                return LayoutQ::block_offset(m, load) + LayoutQ::lane_offset(lane);
            };
            for (int lane = 0; lane < kWarpSize; ++lane) {
                const int row = 8 * m + q_operand_row(lane), group = decode_k_group(lane);
                expect_equal(
                    address(lane), LayoutQ::offset(row, 4 * load + group), "A operand of Q");
            }
            expect_equal(passes(address, 16), kMinPasses16, "load of Q");
        }
    }
}

// Offset of a lane's two columns of O among the rows of all warps, as DecodeMerge places them.
template <typename Traits>
int merged_offset(int warp, int lane, int row, int col) {
    return ((warp * 8 + acc_row(lane, row) % 8) * Traits::kORowFloats +
               out_col<Traits::kVLoads * kVLoadCols>(lane, col)) *
           4;
}

template <typename Traits>
void decode_o_is_merged_without_conflicts() {
    for (int m = 0; m < Traits::kBlocksM; ++m) {
        std::set<int> offsets;
        for (int warp = 0; warp < Traits::kNWarps; ++warp) {
            for (int row = 2 * m; row < 2 * m + 2; ++row) {
                for (int col = 0; col < Traits::AccO::kCols; col += 2) {
                    const auto address = [=](int lane) {
                        return merged_offset<Traits>(warp, lane, row, col);
                    };
                    for (int lane = 0; lane < kWarpSize; ++lane) {
                        const int offset = address(lane);
                        expect(offset % 8 == 0 && offset >= 0 && offset < Traits::kOBytes,
                            "O: offset out of place");
                        expect(offsets.insert(offset).second, "O: a place with two writers");
                    }
                    expect_equal(passes(address, 8), kMinPasses8, "store of O");
                }
            }
        }
    }
}

const Register kChecks = {
    CHECK(decode_loads_are_consecutive_bytes),
    CHECK(decode_scores_have_one_owner),
    CHECK(decode_row_peers_are_the_lanes_of_a_row),
    CHECK(decode_p_comes_from_the_lanes_of_its_row),
    CHECK_INSTANCES(decode_q_lies_as_it_is_loaded),
    CHECK_INSTANCES(decode_o_is_merged_without_conflicts),
};

}  // namespace
