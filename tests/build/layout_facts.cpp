// SPDX-License-Identifier: Apache-2.0
// Enumerates the facts that the sm_70 kernels rest on, with the kernels' own constexpr functions,
// on a CPU.
//
//   layout_facts --list     names of the checks
//   layout_facts NAME       runs one; exit status 0 if it holds, else 1 and what was found
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sm70/fragment.h"
#include "sm70/kernel_traits.h"
#include "sm70/mask.h"
#include "sm70/smem_layout.h"
#include "sm70/softmax.h"

using namespace flash::sm70;
using Traits = Flash_fwd_kernel_traits<256>;

namespace {

struct Failed {
    std::string what;
};

void expect(bool holds, const std::string &what) {
    if (!holds) { throw Failed{what}; }
}

void expect_equal(long got, long expected, const std::string &what) {
    expect(got == expected,
        what + ": got " + std::to_string(got) + ", expected " + std::to_string(expected));
}

////////////////////////////////////////////////////////////////////////////////////////////////////
// Ownership

template <typename Function>
void expect_fragment_bijection(
    Function coord, int registers, int rows, int cols, const char *name) {
    for (int pair = 0; pair < 4; ++pair) {
        std::set<std::pair<int, int>> seen;
        for (int lane = 0; lane < kWarpSize; ++lane) {
            if (quad_pair(lane) != pair) { continue; }
            for (int i = 0; i < registers; ++i) {
                const Coord at = coord(lane, i);
                expect(at.row >= 0 && at.row < rows && at.col >= 0 && at.col < cols,
                    std::string(name) + " leaves its matrix");
                seen.insert({at.row, at.col});
            }
        }
        expect_equal(
            seen.size(), rows * cols, std::string(name) + ": elements owned by a quad pair");
    }
}

void fragments_are_bijections() {
    expect_fragment_bijection(a_row_coord, 4, 8, 4, "A, row major");
    expect_fragment_bijection(b_col_coord, 4, 4, 8, "B, column major");
    expect_fragment_bijection(b_row_coord, 4, 4, 8, "B, row major");
    expect_fragment_bijection(c_coord, 8, 8, 8, "C");
}

void acc_fragment_registers_are_a_bijection() {
    std::set<int> registers;
    for (int row = 0; row < 2; ++row) {
        for (int col = 0; col < 4; ++col) { registers.insert(Traits::AccS::index(row, col)); }
    }
    expect_equal(registers.size(), 8, "registers of a block");
    expect(*registers.begin() == 0 && *registers.rbegin() == 7, "registers are 0..7");
}

template <typename Acc, typename Column>
void expect_tile_bijection(Column column, int rows, int cols, const char *name) {
    std::set<std::pair<int, int>> seen;
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int row = 0; row < Acc::kRows; ++row) {
            for (int col = 0; col < Acc::kCols; ++col) {
                seen.insert({acc_row(lane, row), column(lane, col)});
            }
        }
    }
    expect_equal(seen.size(), rows * cols, std::string(name) + ": elements owned by a warp");
    expect(
        seen.begin()->first == 0 && seen.rbegin()->first == rows - 1, std::string(name) + ": rows");
}

void warp_tiles_are_bijections() {
    expect_tile_bijection<Traits::AccS>(score_col, Traits::kWarpM, Traits::kBlockN, "S");
    expect_tile_bijection<Traits::AccO>(out_col, Traits::kWarpM, Traits::kHeadDim, "O");
}

void neighbouring_columns_are_adjacent() {
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int col = 0; col < Traits::AccS::kCols; col += 2) {
            expect_equal(score_col(lane, col + 1), score_col(lane, col) + 1,
                "S columns packed into one register");
        }
        for (int col = 0; col < Traits::AccO::kCols; col += 2) {
            expect_equal(out_col(lane, col + 1), out_col(lane, col) + 1,
                "O columns packed into one register");
            expect_equal(out_col(lane, col) % 2, 0, "an O pair is aligned to 4 bytes");
        }
    }
}

// A butterfly over the peer masks joins exactly the lanes that own a row.
void row_peers_are_the_lanes_of_a_row() {
    for (int row = 0; row < Traits::AccS::kRows; ++row) {
        std::map<int, std::set<int>> owners;
        std::map<int, int> leaders;
        for (int lane = 0; lane < kWarpSize; ++lane) {
            owners[acc_row(lane, row)].insert(lane);
            leaders[acc_row(lane, row)] += is_row_leader(lane);
        }
        for (int lane = 0; lane < kWarpSize; ++lane) {
            std::set<int> reached = {lane};
            for (int step = 0; step < kRowReduceSteps; ++step) {
                std::set<int> more;
                for (const int other : reached) { more.insert(other ^ row_peer_mask(step)); }
                reached.insert(more.begin(), more.end());
            }
            expect(reached == owners[acc_row(lane, row)],
                "a reduction reaches other lanes than those of the row");
        }
        for (const auto &[tile_row, count] : leaders) {
            expect_equal(count, 1, "leaders of a row");
        }
    }
}

////////////////////////////////////////////////////////////////////////////////////////////////////
// Shared memory

// Passes that one warp instruction takes. 4-byte accesses are served all lanes at once, 8-byte ones
// a half warp at a time, 16-byte ones a quarter warp at a time; lanes that touch the same word
// share it, different words of a bank do not.
template <typename Address>
int passes(Address address, int bytes) {
    const int lanes_at_once = kWarpSize * 4 / bytes;
    int total = 0;
    for (int first = 0; first < kWarpSize; first += lanes_at_once) {
        std::array<std::set<int>, 32> words_of_bank;
        for (int lane = first; lane < first + lanes_at_once; ++lane) {
            for (int word = address(lane) / 4; word < (address(lane) + bytes) / 4; ++word) {
                words_of_bank[word % 32].insert(word);
            }
        }
        size_t most = 0;
        for (const auto &words : words_of_bank) { most = std::max(most, words.size()); }
        total += static_cast<int>(most);
    }
    return total;
}

constexpr int kMinPasses16 = 4;

template <typename Layout>
void expect_layout_bijection(int rows, int groups, int bytes, const char *name) {
    std::set<int> offsets;
    for (int row = 0; row < rows; ++row) {
        for (int group = 0; group < groups; ++group) {
            const int offset = Layout::offset(row, group);
            expect(offset % kGroupBytes == 0 && offset >= 0 && offset < bytes,
                std::string(name) + ": offset out of place");
            offsets.insert(offset);
        }
    }
    expect_equal(offsets.size() * kGroupBytes, bytes, std::string(name) + ": bytes used");
}

void layouts_are_bijections() {
    expect_layout_bijection<Traits::LayoutQ>(
        Traits::kBlockM, Traits::kHeadDim / 8, Traits::kRingOffset, "Q");
    expect_layout_bijection<Traits::LayoutK>(
        Traits::kBlockN, Traits::kKChunkDim / 8, Traits::kChunkBytes, "K chunk");
    expect_layout_bijection<Traits::LayoutV>(
        Traits::kVChunkKeys, Traits::kHeadDim / 8, Traits::kChunkBytes, "V chunk");
}

template <typename Layout>
int q_load_passes(int first_row, int group) {
    return passes(
        [=](int lane) { return Layout::offset(first_row + q_operand_row(lane), group); }, 16);
}
template <typename Layout>
int k_load_passes(int first_key, int group) {
    return passes(
        [=](int lane) { return Layout::offset(first_key + k_operand_key(lane), group); }, 16);
}
template <typename Layout>
int v_load_passes(int first_key, int first_group) {
    return passes(
        [=](int lane) {
            return Layout::offset(
                first_key + v_operand_key(lane), first_group + v_operand_group(lane));
        },
        16);
}

void operand_loads_have_no_conflicts() {
    for (int row = 0; row < Traits::kBlockM; row += 8) {
        for (int group = 0; group < Traits::kHeadDim / 8; ++group) {
            expect_equal(q_load_passes<Traits::LayoutQ>(row, group), kMinPasses16, "load of Q");
        }
    }
    for (int key = 0; key < Traits::kBlockN; key += 32) {
        for (int group = 0; group < Traits::kKChunkDim / 8; ++group) {
            expect_equal(k_load_passes<Traits::LayoutK>(key, group), kMinPasses16, "load of K");
        }
    }
    for (int key = 0; key < Traits::kVChunkKeys; key += 4) {
        for (int group = 0; group < Traits::kHeadDim / 8; group += 8) {
            expect_equal(v_load_passes<Traits::LayoutV>(key, group), kMinPasses16, "load of V");
        }
    }
}

void fills_have_no_conflicts() {
    for (int first = 0; first < Traits::kNThreads; first += kWarpSize) {
        const auto k = [=](int lane) {
            return Traits::LayoutK::offset(
                (first + lane) / Traits::kKFillLanes, (first + lane) % Traits::kKFillLanes);
        };
        const auto v = [=](int lane) {
            return Traits::LayoutV::offset(
                (first + lane) / Traits::kVFillLanes, (first + lane) % Traits::kVFillLanes);
        };
        expect_equal(passes(k, 16), kMinPasses16, "fill of K");
        expect_equal(passes(v, 16), kMinPasses16, "fill of V");
    }
    for (int row = 0; row < Traits::kBlockM; ++row) {
        const auto q = [=](int lane) { return Traits::LayoutQ::offset(row, lane); };
        expect_equal(passes(q, 16), kMinPasses16, "fill of Q, read of O");
    }
}

void o_is_staged_in_two_passes() {
    for (int row = 0; row < Traits::AccO::kRows; ++row) {
        for (int col = 0; col < Traits::AccO::kCols; col += 2) {
            const auto o = [=](int lane) {
                const int d = out_col(lane, col);
                return Traits::LayoutQ::offset(acc_row(lane, row), d / 8) + d % 8 * 2;
            };
            expect_equal(passes(o, 4), 2, "staging of O");
        }
    }
}

// Without the swizzle: what the layouts are for, and a sign that passes() can count.
template <int kRowHalves>
struct PlainLayout {
    static int offset(int row, int group) { return row * kRowHalves * 2 + group * kGroupBytes; }
};

void unswizzled_layouts_conflict() {
    expect_equal(q_load_passes<PlainLayout<Traits::kHeadDim>>(0, 0), 16, "plain Q");
    expect_equal(k_load_passes<PlainLayout<Traits::kKChunkDim>>(0, 0), 32, "plain K");
    expect_equal(v_load_passes<PlainLayout<Traits::kHeadDim>>(0, 0), 16, "plain V");
}

// The addresses that the main loop derives from unit 0 are those of the layout.
void operand_addresses_follow_from_the_first() {
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int group = 0; group < Traits::kHeadDim / 8; ++group) {
            const int row = 16 + q_operand_row(lane), step = group % 8 * kGroupBytes,
                      line = group / 8 * 128;
            expect_equal((Traits::LayoutQ::offset(row, 0) ^ step) + line,
                Traits::LayoutQ::offset(row, group), "address of Q");
        }
        for (int group = 0; group < Traits::kKChunkDim / 8; ++group) {
            const int key = k_operand_key(lane);
            expect_equal((Traits::LayoutK::offset(key, 0) ^ group * kGroupBytes) +
                             32 * Traits::LayoutK::kRowBytes,
                Traits::LayoutK::offset(key + 32, group), "address of K");
        }
        const int key = v_operand_key(lane), group = v_operand_group(lane);
        expect_equal(Traits::LayoutV::offset(key, group) + 4 * Traits::LayoutV::kRowBytes + 128,
            Traits::LayoutV::offset(key + 4, group + 8), "address of V");
    }
    for (int thread = 0; thread < Traits::kNThreads; ++thread) {
        const int k_key = thread / Traits::kKFillLanes, k_group = thread % Traits::kKFillLanes;
        const int v_key = thread / Traits::kVFillLanes, v_group = thread % Traits::kVFillLanes;
        expect_equal(Traits::LayoutK::offset(k_key, k_group) +
                         Traits::LayoutK::offset(Traits::kKFillKeys, 0),
            Traits::LayoutK::offset(k_key + Traits::kKFillKeys, k_group),
            "a thread's second group of K");
        expect_equal(Traits::LayoutV::offset(v_key, v_group) +
                         Traits::LayoutV::offset(Traits::kVFillKeys, 0),
            Traits::LayoutV::offset(v_key + Traits::kVFillKeys, v_group),
            "a thread's second group of V");
    }
}

////////////////////////////////////////////////////////////////////////////////////////////////////
// Exact S = Q K^T -> P -> O = P V of one warp, lane by lane, on small integers

constexpr int kM = Traits::kWarpM, kN = Traits::kBlockN, kD = 64;

struct Matrices {
    int q[kM][kD], k[kN][kD], v[kN][kD];

    Matrices() {
        uint32_t state = 1;
        const auto next = [&state] {
            state = state * 1664525u + 1013904223u;
            return static_cast<int>(state >> 29) - 3;  // -3 .. 4
        };
        for (auto &row : q) {
            for (int &x : row) { x = next(); }
        }
        for (auto &row : k) {
            for (int &x : row) { x = next(); }
        }
        for (auto &row : v) {
            for (int &x : row) { x = next(); }
        }
    }
};

using Operand = std::array<std::array<int, 4>, kWarpSize>;
using Accumulator = std::array<std::array<int, 8>, kWarpSize>;

// What the instruction does, from the ownership of its fragments.
template <typename CoordB>
void mma(Accumulator &c, const Operand &a, const Operand &b, CoordB coord_b) {
    for (int pair = 0; pair < 4; ++pair) {
        int left[8][4] = {}, right[4][8] = {};
        for (int lane = 0; lane < kWarpSize; ++lane) {
            if (quad_pair(lane) != pair) { continue; }
            for (int i = 0; i < 4; ++i) {
                const Coord at = a_row_coord(lane, i), bt = coord_b(lane, i);
                left[at.row][at.col] = a[lane][i];
                right[bt.row][bt.col] = b[lane][i];
            }
        }
        for (int lane = 0; lane < kWarpSize; ++lane) {
            if (quad_pair(lane) != pair) { continue; }
            for (int i = 0; i < 8; ++i) {
                const Coord at = c_coord(lane, i);
                for (int k = 0; k < 4; ++k) { c[lane][i] += left[at.row][k] * right[k][at.col]; }
            }
        }
    }
}

int expected_score(const Matrices &x, int row, int key) {
    int sum = 0;
    for (int d = 0; d < kD; ++d) { sum += x.q[row][d] * x.k[key][d]; }
    return sum;
}

// Scores as [8-row block][32-key block][lane][register]; each checked against the plain product.
using Scores = std::array<std::array<Accumulator, kN / 32>, kM / 8>;

Scores make_scores(const Matrices &x) {
    Scores scores = {};
    for (int m = 0; m < kM / 8; ++m) {
        for (int n = 0; n < kN / 32; ++n) {
            for (int d = 0; d < kD; d += 4) {
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

int score_at(const Scores &scores, int lane, int row, int col) {
    return scores[row >> 1][col >> 2][lane][Traits::AccS::index(row, col)];
}

void scores_are_exact() {
    const Matrices x;
    const Scores scores = make_scores(x);
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int row = 0; row < Traits::AccS::kRows; ++row) {
            for (int col = 0; col < Traits::AccS::kCols; ++col) {
                expect_equal(score_at(scores, lane, row, col),
                    expected_score(x, acc_row(lane, row), score_col(lane, col)), "S");
            }
        }
    }
}

// Elements of O that differ from the plain product, with `source` as the lane that an A operand is
// taken from.
template <typename Source>
int wrong_outputs(Source source) {
    const Matrices x;
    const Scores scores = make_scores(x);
    std::array<std::array<Accumulator, kD / 32>, kM / 8> out = {};
    for (int m = 0; m < kM / 8; ++m) {
        for (int group = 0; group < kN / 16; ++group) {
            // The exchange, as exchange_p() does it: two rows of two keys each, one of them sent to
            // the peer.
            Operand p;
            for (int lane = 0; lane < kWarpSize; ++lane) {
                const int kept = p_kept_row(lane), peer = p_exchange_peer(lane);
                for (int i = 0; i < 2; ++i) {
                    const int own = score_at(scores, lane, 2 * m + kept, 2 * group + i);
                    const int received =
                        score_at(scores, peer, 2 * m + 1 - p_kept_row(peer), 2 * group + i);
                    p[lane][i] = kept ? received : own;
                    p[lane][2 + i] = kept ? own : received;
                }
                for (int i = 0; i < 4; ++i) {
                    expect_equal(p[lane][i],
                        expected_score(x, 8 * m + p_row(lane), 16 * group + p_first_key(lane) + i),
                        "P after the exchange");
                }
            }
            for (int step = 0; step < 4; ++step) {
                Operand a, b;
                for (int lane = 0; lane < kWarpSize; ++lane) { a[lane] = p[source(lane, step)]; }
                for (int n = 0; n < kD / 32; ++n) {  // the two B fragments of one 16-byte load
                    for (int lane = 0; lane < kWarpSize; ++lane) {
                        for (int i = 0; i < 4; ++i) {
                            b[lane][i] = x.v[16 * group + 4 * step + v_operand_key(lane)]
                                            [8 * v_operand_group(lane) + 4 * n + i];
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
                int expected = 0;
                for (int key = 0; key < kN; ++key) {
                    expected +=
                        expected_score(x, acc_row(lane, row), key) * x.v[key][out_col(lane, col)];
                }
                wrong += out[row >> 1][col >> 2][lane][Traits::AccO::index(row, col)] != expected;
            }
        }
    }
    return wrong;
}

void outputs_are_exact() {
    expect_equal(wrong_outputs(p_broadcast_source), 0, "wrong elements of O");
}

void outputs_are_wrong_when_p_is_taken_from_another_lane() {
    expect(wrong_outputs([](int lane, int step) { return p_broadcast_source(lane, step ^ 1); }) > 0,
        "a wrong source goes unnoticed");
}

////////////////////////////////////////////////////////////////////////////////////////////////////
// Tiles, masks, scaling

void chunk_stream_visits_every_chunk_once_and_in_order() {
    constexpr int kTiles = 4;
    std::vector<int> next_k(kTiles + 1), next_v(kTiles + 1);
    for (int position = 0; position < kTiles * Traits::kChunks; ++position) {
        const auto chunk = Traits::chunk_at(position);
        if (chunk.tile < 0) {
            expect(position == Traits::kHeldBack && !chunk.is_k,
                "only the first held-back chunk has no tile");
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

void key_limits_are_bottom_right_aligned() {
    for (int seqlen_q = 1; seqlen_q < 6; ++seqlen_q) {
        for (int seqlen_k = 0; seqlen_k < 6; ++seqlen_k) {
            for (int position = 0; position < seqlen_q; ++position) {
                expect_equal(key_limit<false>(position, seqlen_q, seqlen_k), seqlen_k,
                    "keys without a mask");
                for (int key = 0; key < seqlen_k; ++key) {
                    const bool visible = seqlen_k - 1 - key >=
                                         seqlen_q - 1 - position;  // counted from the last corner
                    expect((key < key_limit<true>(position, seqlen_q, seqlen_k)) == visible,
                        "causal limit");
                }
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

const std::vector<std::pair<const char *, void (*)()>> kChecks = {
#define CHECK(name) {#name, name}
    CHECK(fragments_are_bijections),
    CHECK(acc_fragment_registers_are_a_bijection),
    CHECK(warp_tiles_are_bijections),
    CHECK(neighbouring_columns_are_adjacent),
    CHECK(row_peers_are_the_lanes_of_a_row),
    CHECK(layouts_are_bijections),
    CHECK(operand_loads_have_no_conflicts),
    CHECK(fills_have_no_conflicts),
    CHECK(o_is_staged_in_two_passes),
    CHECK(unswizzled_layouts_conflict),
    CHECK(operand_addresses_follow_from_the_first),
    CHECK(scores_are_exact),
    CHECK(outputs_are_exact),
    CHECK(outputs_are_wrong_when_p_is_taken_from_another_lane),
    CHECK(chunk_stream_visits_every_chunk_once_and_in_order),
    CHECK(key_limits_are_bottom_right_aligned),
    CHECK(scaled_probabilities_fit_fp16),
#undef CHECK
};

}  // namespace

int main(int argc, char **argv) {
    const std::string wanted = argc == 2 ? argv[1] : "";
    for (const auto &[name, check] : kChecks) {
        if (wanted == "--list") { std::puts(name); }
        if (wanted != name) { continue; }
        try {
            check();
            return 0;
        } catch (const Failed &failed) {
            std::printf("%s: %s\n", name, failed.what.c_str());
            return 1;
        }
    }
    return wanted == "--list" ? 0 : 2;
}
