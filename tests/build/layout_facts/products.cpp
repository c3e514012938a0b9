// SPDX-License-Identifier: Apache-2.0
// Exact S = Q K^T -> P -> O = P V of one warp, lane by lane, on small integers.
#include <array>
#include <memory>

#include "model.h"
#include "tiles.h"

using namespace flash::sm70;
using namespace facts;

namespace {

template <typename Traits>
using TileMatrices = Matrices<Traits::kWarpM, Traits::kBlockN, Traits::kHeadDim>;

// Scores as [8-row block][32-key block][lane][register]; each checked against the plain product.
template <typename Traits>
using Scores = std::array<std::array<Accumulator, Traits::kBlockN / 32>, Traits::kBlocksM>;

template <typename Traits>
Scores<Traits> make_scores(const TileMatrices<Traits> &x) {
    Scores<Traits> scores = {};
    for (int m = 0; m < Traits::kBlocksM; ++m) {
        for (int n = 0; n < Traits::kBlockN / 32; ++n) {
            for (int d = 0; d < Traits::kHeadDim; d += 4) {
                Operand a, b;
                for (int lane = 0; lane < kWarpSize; ++lane) {
                    for (int i = 0; i < 4; ++i) {
                        a[lane][i] = x.q[8 * m + q_operand_row(lane)][d + i];
                        b[lane][i] = x.k[32 * n + k_operand_key(lane)][d + i];
                    }
                }
                mma(scores[m][n], a, b, b_col_coord);
            }
        }
    }
    return scores;
}

template <typename Traits>
int score_at(const Scores<Traits> &scores, int lane, int row, int col) {
    return scores[row >> 1][col >> 2][lane][Traits::AccS::index(row, col)];
}

template <typename Traits>
void scores_are_exact() {
    const auto x = std::make_unique<TileMatrices<Traits>>();
    const Scores<Traits> scores = make_scores<Traits>(*x);
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int row = 0; row < Traits::AccS::kRows; ++row) {
            for (int col = 0; col < Traits::AccS::kCols; ++col) {
                expect_equal(score_at<Traits>(scores, lane, row, col),
                    x->score[acc_row(lane, row)][score_col(lane, col)], "S");
            }
        }
    }
}

// Elements of O that differ from the plain product, with `source` as the lane that an A operand is
// taken from.
template <typename Traits, typename Source>
int wrong_outputs(Source source) {
    constexpr int kM = Traits::kWarpM, kN = Traits::kBlockN, kD = Traits::kHeadDim;
    const auto x = std::make_unique<TileMatrices<Traits>>();
    const Scores<Traits> scores = make_scores<Traits>(*x);
    std::array<std::array<Accumulator, kD / 32>, kM / 8> out = {};
    for (int m = 0; m < kM / 8; ++m) {
        for (int group = 0; group < kN / 16; ++group) {
            // The exchange, as exchange_p() does it: two rows of two keys each, one of them sent to
            // the peer.
            Operand p;
            for (int lane = 0; lane < kWarpSize; ++lane) {
                const int kept = p_kept_row(lane), peer = p_exchange_peer(lane);
                for (int i = 0; i < 2; ++i) {
                    const int own = score_at<Traits>(scores, lane, 2 * m + kept, 2 * group + i);
                    const int received =
                        score_at<Traits>(scores, peer, 2 * m + 1 - p_kept_row(peer), 2 * group + i);
                    p[lane][i] = kept ? received : own;
                    p[lane][2 + i] = kept ? own : received;
                }
                for (int i = 0; i < 4; ++i) {
                    expect_equal(p[lane][i],
                        x->score[8 * m + p_row(lane)][16 * group + p_first_key(lane) + i],
                        "P after the exchange");
                }
            }
            for (int step = 0; step < 4; ++step) {
                Operand a, b;
                for (int lane = 0; lane < kWarpSize; ++lane) { a[lane] = p[source(lane, step)]; }
                for (int n = 0; n < kD / 32; ++n) {
                    for (int lane = 0; lane < kWarpSize; ++lane) {
                        for (int i = 0; i < 4; ++i) {
                            const int d =
                                n / 2 < Traits::kVLoads
                                    ? 64 * (n / 2) + 8 * v_operand_group(lane) + 4 * (n % 2)
                                    : 64 * Traits::kVLoads + v_tail_column(lane);
                            b[lane][i] = x->v[16 * group + 4 * step + v_operand_key(lane)][d + i];
                        }
                    }
                    mma(out[m][n], a, b, b_row_coord);
                }
            }
        }
    }
    int wrong = 0;
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int row = 0; row < 2 * kM / 8; ++row) {
            for (int col = 0; col < 4 * kD / 32; ++col) {
                const int expected =
                    x->output(acc_row(lane, row), out_col<Traits::kHeadDim>(lane, col));
                wrong += out[row >> 1][col >> 2][lane][Traits::AccO::index(row, col)] != expected;
            }
        }
    }
    return wrong;
}

template <typename Traits>
void outputs_are_exact() {
    expect_equal(wrong_outputs<Traits>(p_broadcast_source), 0, "wrong elements of O");
}

template <typename Traits>
void outputs_are_wrong_when_p_is_taken_from_another_lane() {
    expect(wrong_outputs<Traits>(
               [](int lane, int step) { return p_broadcast_source(lane, step ^ 1); }) > 0,
        "a wrong source goes unnoticed");
}

const Register kChecks = {
    CHECK_TILES(scores_are_exact),
    CHECK_TILES(outputs_are_exact),
    CHECK_TILES(outputs_are_wrong_when_p_is_taken_from_another_lane),
};

}  // namespace
