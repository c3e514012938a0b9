// SPDX-License-Identifier: Apache-2.0
// GQA prefill with a workspace: who owns what in the wide GEMMs, and bank conflicts.
#include <array>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "model.h"
#include "sm70/gqa_wide_traits.h"

using namespace flash::sm70;
using namespace facts;

namespace {

// The lane of a quad pair that holds row m of an A fragment.
int a_lane(int pair, int m) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
        if (quad_pair(lane) == pair && a_row_coord(lane, 0).row == m) { return lane; }
    }
    throw Failed{"no lane"};
}

// Every element of a 64 x 64 tile has one owner.
void owners(const std::function<int(int, int)> &column) {
    std::set<std::pair<int, int>> seen;
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int row = 0; row < kWideRows; ++row) {
            for (int col = 0; col < 4 * kWideBlocks; ++col) {
                const std::pair<int, int> at = {wide_acc_row(lane, row), column(lane, col)};
                expect(at.first >= 0 && at.first < kWideSize && at.second >= 0 &&
                           at.second < kWideSize,
                    "an owner outside of the tile");
                expect(seen.insert(at).second, "an element with two owners");
            }
        }
    }
    expect_equal(seen.size(), kWideSize * kWideSize, "elements with an owner");
}

void wide_tile_has_owners() {
    owners([](int lane, int col) { return wide_score_col(lane, col); });
    owners([](int lane, int col) { return wide_out_col(lane, col); });
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int step = 0; step < kWideReduceSteps; ++step) {
            const int peer = lane ^ wide_row_peer_mask(step);
            for (int row = 0; row < kWideRows; ++row) {
                expect_equal(
                    wide_acc_row(peer, row), wide_acc_row(lane, row), "row of a lane's peer");
            }
        }
    }
}

// A butterfly over the peer masks joins exactly the lanes that own a row.
void wide_row_peers_are_the_lanes_of_a_row() {
    constexpr int kPeers = wide_row_peer_mask(0) | wide_row_peer_mask(1);
    static_assert(kWideReduceSteps == 2);
    for (int lane = 0; lane < kWarpSize; ++lane) {
        int leaders = 0;
        for (int other = 0; other < kWarpSize; ++other) {
            const bool are_peers = ((lane ^ other) | kPeers) == kPeers;
            for (int row = 0; row < kWideRows; ++row) {
                expect(are_peers == (wide_acc_row(lane, row) == wide_acc_row(other, row)),
                    "a reduction reaches other lanes than those of the row");
            }
            leaders += are_peers && is_wide_row_leader(other);
        }
        expect_equal(leaders, 1, "leaders of a row");
    }
}

// The instruction puts the product of A row m and B column n where the owner formulas say.
void wide_products_reach_their_owners() {
    for (int lane = 0; lane < kWarpSize; ++lane) {
        const int pair = quad_pair(lane);
        for (int row = 0; row < 2; ++row) {
            for (int col = 0; col < 4; ++col) {
                const Coord c = c_coord(lane, wide_acc_index(row, col));
                expect_equal(
                    wide_a_row(a_lane(pair, c.row)), wide_acc_row(lane, row), "row of S and O");
                // B fragments have their columns in the same lanes as A its rows.
                expect_equal(
                    wide_key(a_lane(pair, c.col)), wide_score_col(lane, col), "key of S");
                for (int half = 0; half < 2; ++half) {
                    // Row-major B: the lane has 4 columns of each of two blocks.
                    for (int b = 0; b < kWarpSize; ++b) {
                        for (int i = 0; i < 4; ++i) {
                            if (quad_pair(b) != pair || b_row_coord(b, i).col != c.col) {
                                continue;
                            }
                            expect_equal(8 * wide_v_group(b) + 4 * half + i,
                                wide_out_col(lane, 4 * half + col), "column of O");
                        }
                    }
                }
            }
        }
    }
}

constexpr int kGroupKeys[8] = {0, 1, 4, 5, 16, 17, 20, 21};

void wide_groups_of_p_meet_their_keys() {
    std::set<int> keys;
    for (int group = 0; group < kGqaMaxKeys / 8; ++group) {
        for (const int key : kGroupKeys) { keys.insert(wide_p_first_key(group) + key); }
    }
    expect_equal(keys.size(), kGqaMaxKeys, "keys in groups");
    expect_equal(*keys.rbegin(), kGqaMaxKeys - 1, "last key");
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int col = 0; col < 4 * kWideBlocks; ++col) {
            expect_equal(
                wide_p_first_key(wide_p_group(lane, col / 8)) + kGroupKeys[col % 8],
                wide_score_col(lane, col), "key of a lane's column");
        }
        expect_equal(wide_v_key(lane), kGroupKeys[b_row_coord(lane, 0).row], "row of V");
    }
}

void expect_no_conflicts(const std::function<int(int)> &address, const std::string &what) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
        expect_equal(address(lane) % kGroupBytes, 0, what + ": alignment");
    }
    expect_equal(passes(address, 16), kMinPasses16, what);
}

void wide_shared_memory_has_no_conflicts() {
    using Qk = Gqa_qk_traits;
    using Pv = Gqa_pv_traits;
    expect_no_conflicts([](int lane) { return wide_a_row(lane) * kGroupBytes; }, "operand of Q, P");
    expect_no_conflicts([](int lane) { return wide_key(lane) * kGroupBytes; }, "operand of K");
    expect_no_conflicts(
        [](int lane) {
            return wide_v_key(lane) * Pv::kVRowBytes + wide_v_group(lane) * kGroupBytes;
        },
        "operand of V");
    expect_no_conflicts([](int lane) { return lane * Qk::kQGroupBytes; }, "store of Q");
    expect_no_conflicts(
        [](int lane) {
            return lane % Qk::kUnits * Qk::kKGroupBytes + lane / Qk::kUnits * kGroupBytes;
        },
        "store of K");
}

// Exact S = Q K^T -> P -> O = P V of a warp's tiles, lane by lane, on small integers; P on its way
// through memory as groups of 8 keys.

constexpr int kWideDim = 64;  // of Q and K here; the kernel's loop over more adds nothing new
using WideMatrices = Matrices<kWideSize, kWideSize, kWideDim>;
static_assert(kWideDim == kWideSize, "V has as many columns as a warp's tile of O");

using WideAccumulators = std::array<std::array<Accumulator, kWideBlocks>, kWideBlocks>;
int wide_at(const WideAccumulators &acc, int lane, int row, int col) {
    return acc[row >> 1][col >> 2][lane][wide_acc_index(row, col)];
}

WideAccumulators make_scores(const WideMatrices &x) {
    WideAccumulators scores = {};
    for (int m = 0; m < kWideBlocks; ++m) {
        for (int n = 0; n < kWideBlocks; ++n) {
            for (int d = 0; d < kWideDim; d += 4) {
                Operand a, b;
                for (int lane = 0; lane < kWarpSize; ++lane) {
                    for (int i = 0; i < 4; ++i) {
                        a[lane][i] = x.q[16 * m + wide_a_row(lane)][d + i];
                        b[lane][i] = x.k[16 * n + wide_key(lane)][d + i];
                    }
                }
                mma(scores[m][n], a, b, b_col_coord);
            }
        }
    }
    return scores;
}

void wide_scores_are_exact() {
    const WideMatrices x;
    const WideAccumulators scores = make_scores(x);
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int row = 0; row < kWideRows; ++row) {
            for (int col = 0; col < 4 * kWideBlocks; ++col) {
                expect_equal(wide_at(scores, lane, row, col),
                    x.score[wide_acc_row(lane, row)][wide_score_col(lane, col)], "S");
            }
        }
    }
}

void wide_outputs_are_exact() {
    const WideMatrices x;
    const WideAccumulators scores = make_scores(x);
    int p[kGqaMaxKeys / 8][kWideSize][8] = {};
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int row = 0; row < kWideRows; ++row) {
            for (int col = 0; col < 4 * kWideBlocks; ++col) {
                p[wide_p_group(lane, col / 8)][wide_acc_row(lane, row)][col % 8] =
                    wide_at(scores, lane, row, col);
            }
        }
    }
    WideAccumulators out = {};
    for (int group = 0; group < kGqaMaxKeys / 8; ++group) {
        for (int half = 0; half < 2; ++half) {
            for (int m = 0; m < kWideBlocks; ++m) {
                for (int n = 0; n < kWideBlocks; ++n) {
                    Operand a, b;
                    for (int lane = 0; lane < kWarpSize; ++lane) {
                        const int key = wide_p_first_key(group) + 16 * half + wide_v_key(lane);
                        const int d = 32 * (n / 2) + 8 * wide_v_group(lane) + 4 * (n % 2);
                        for (int i = 0; i < 4; ++i) {
                            a[lane][i] = p[group][16 * m + wide_a_row(lane)][4 * half + i];
                            b[lane][i] = x.v[key][d + i];
                        }
                    }
                    mma(out[m][n], a, b, b_row_coord);
                }
            }
        }
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int row = 0; row < kWideRows; ++row) {
            for (int col = 0; col < 4 * kWideBlocks; ++col) {
                expect_equal(wide_at(out, lane, row, col),
                    x.output(wide_acc_row(lane, row), wide_out_col(lane, col)), "O");
            }
        }
    }
}

const Register kChecks = {
    CHECK(wide_tile_has_owners),
    CHECK(wide_row_peers_are_the_lanes_of_a_row),
    CHECK(wide_products_reach_their_owners),
    CHECK(wide_groups_of_p_meet_their_keys),
    CHECK(wide_shared_memory_has_no_conflicts),
    CHECK(wide_scores_are_exact),
    CHECK(wide_outputs_are_exact),
};

}  // namespace
