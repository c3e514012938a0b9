// SPDX-License-Identifier: Apache-2.0
// Exact S = Q K^T -> P -> O = P V of a decode warp's tile, lane by lane, on small integers.
#include <array>
#include <memory>

#include "decode_instances.h"
#include "model.h"

using namespace flash::sm70;
using namespace facts;

namespace {

template <typename Traits>
using WarpMatrices = Matrices<Traits::kRows, Traits::kKeys, Traits::kHeadDim>;

using Pair = std::array<std::array<int, 2>, kWarpSize>;
template <typename Traits>
using Scores = std::array<std::array<Pair, Traits::kKBlocks>, Traits::kBlocksM>;

// As add_quad_pairs() does it: a lane sends a row, then two keys, and keeps the others.
Pair add_up(const Accumulator &part) {
    std::array<std::array<int, 4>, kWarpSize> rows;
    const auto element = [](int i, bool row1) { return (i & 1) | (i & 2) << 1 | row1 << 1; };
    for (int lane = 0; lane < kWarpSize; ++lane) {
        const int peer = lane ^ 0b00100;
        for (int i = 0; i < 4; ++i) {
            rows[lane][i] =
                part[lane][element(i, lane & 0b00100)] + part[peer][element(i, !(peer & 0b00100))];
        }
    }
    Pair scores;
    for (int lane = 0; lane < kWarpSize; ++lane) {
        const int peer = lane ^ 0b01000;
        for (int i = 0; i < 2; ++i) {
            scores[lane][i] = rows[lane][lane & 0b01000 ? i | 2 : i] +
                              rows[peer][peer & 0b01000 ? i : i | 2];
        }
    }
    return scores;
}

template <typename Traits>
Scores<Traits> make_scores(const WarpMatrices<Traits> &x) {
    Scores<Traits> scores;
    for (int m = 0; m < Traits::kBlocksM; ++m) {
        for (int n = 0; n < Traits::kKBlocks; ++n) {
            Accumulator part = {};
            for (int d = 0; d < Traits::kHeadDim; d += kKLoadCols) {
                for (int half = 0; half < 8; half += 4) {
                    Operand a, b;
                    for (int lane = 0; lane < kWarpSize; ++lane) {
                        for (int i = 0; i < 4; ++i) {
                            const int column = d + 8 * decode_k_group(lane) + half + i;
                            a[lane][i] = x.q[8 * m + q_operand_row(lane)][column];
                            b[lane][i] = x.k[kKLoadKeys * n + decode_k_key(lane)][column];
                        }
                    }
                    mma(part, a, b, b_col_coord);
                }
            }
            scores[m][n] = add_up(part);
        }
    }
    return scores;
}

template <typename Traits>
void decode_scores_are_exact() {
    const auto x = std::make_unique<WarpMatrices<Traits>>();
    const Scores<Traits> scores = make_scores<Traits>(*x);
    for (int m = 0; m < Traits::kBlocksM; ++m) {
        for (int n = 0; n < Traits::kKBlocks; ++n) {
            for (int lane = 0; lane < kWarpSize; ++lane) {
                for (int i = 0; i < 2; ++i) {
                    expect_equal(scores[m][n][lane][i],
                        x->score[8 * m + decode_score_row(lane)]
                                [kKLoadKeys * n + decode_score_key(lane, i)],
                        "S");
                }
            }
        }
    }
}

template <typename Traits>
void decode_outputs_are_exact() {
    const auto x = std::make_unique<WarpMatrices<Traits>>();
    const Scores<Traits> scores = make_scores<Traits>(*x);
    for (int m = 0; m < Traits::kBlocksM; ++m) {
        std::array<Accumulator, 2 * Traits::kVLoads> out = {};
        for (int step = 0; step < Traits::kVSteps; ++step) {
            Operand a, b;
            for (int lane = 0; lane < kWarpSize; ++lane) {
                for (int i = 0; i < 4; ++i) {
                    const int source = decode_p_source(lane, step % 2, i / 2);
                    a[lane][i] = scores[m][step / 2][source][i % 2];
                }
            }
            for (int n = 0; n < 2 * Traits::kVLoads; ++n) {
                for (int lane = 0; lane < kWarpSize; ++lane) {
                    const int key = kVLoadKeys * step + v_operand_key(lane);
                    for (int i = 0; i < 4; ++i) {
                        // Past the head size there are zeros.
                        const int d =
                            kVLoadCols * (n / 2) + 8 * v_operand_group(lane) + 4 * (n % 2) + i;
                        b[lane][i] = d < Traits::kHeadDim ? x->v[key][d] : 0;
                    }
                }
                mma(out[n], a, b, b_row_coord);
            }
        }
        for (int lane = 0; lane < kWarpSize; ++lane) {
            for (int row = 2 * m; row < 2 * m + 2; ++row) {
                for (int col = 0; col < Traits::AccO::kCols; ++col) {
                    const int d = out_col<Traits::kVLoads * kVLoadCols>(lane, col);
                    expect_equal(out[col >> 2][lane][Traits::AccO::index(row, col)],
                        d < Traits::kHeadDim ? x->output(acc_row(lane, row), d) : 0, "O");
                }
            }
        }
    }
}

const Register kChecks = {
    CHECK_INSTANCES(decode_scores_are_exact),
    CHECK_INSTANCES(decode_outputs_are_exact),
};

}  // namespace
