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
#include <memory>
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

// Runs a check for the tile of every head size and variant; names the tile that it fails for.
template <int kHeadDim, Variant kVariant, typename Check>
void for_tile(const Check &check) {
    try {
        check(Flash_fwd_kernel_traits<kHeadDim, kVariant>{});
    } catch (const Failed &failed) {
        static const char *const kNames[] = {"contiguous", "paged", "general"};
        throw Failed{"head size " + std::to_string(kHeadDim) + ", " +
                     kNames[static_cast<int>(kVariant)] + ": " + failed.what};
    }
}

template <typename Check>
void for_every_tile(const Check &check) {
#define EVERY_HEAD_DIM(variant)                                                                \
    for_tile<64, variant>(check), for_tile<96, variant>(check), for_tile<128, variant>(check), \
        for_tile<192, variant>(check), for_tile<256, variant>(check)
    EVERY_HEAD_DIM(Variant::kContiguous);
    EVERY_HEAD_DIM(Variant::kPaged);
    EVERY_HEAD_DIM(Variant::kGeneral);
#undef EVERY_HEAD_DIM
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

template <typename Traits>
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

template <typename Traits>
void warp_tiles_are_bijections() {
    expect_tile_bijection<typename Traits::AccS>(score_col, Traits::kWarpM, Traits::kBlockN, "S");
    expect_tile_bijection<typename Traits::AccO>(
        out_col<Traits::kHeadDim>, Traits::kWarpM, Traits::kHeadDim, "O");
}

template <typename Traits>
void neighbouring_columns_are_adjacent() {
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int col = 0; col < Traits::AccS::kCols; col += 2) {
            expect_equal(score_col(lane, col + 1), score_col(lane, col) + 1,
                "S columns packed into one register");
        }
        for (int col = 0; col < Traits::AccO::kCols; col += 2) {
            const int d = out_col<Traits::kHeadDim>(lane, col);
            expect_equal(out_col<Traits::kHeadDim>(lane, col + 1), d + 1,
                "O columns packed into one register");
            expect_equal(d % 2, 0, "an O pair is aligned to 4 bytes");
        }
    }
}

// A butterfly over the peer masks joins exactly the lanes that own a row.
template <typename Traits>
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

constexpr int kMinPasses16 = 4, kMinPasses8 = 2;

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

template <typename Traits>
void layouts_are_bijections() {
    expect_layout_bijection<typename Traits::LayoutQ>(
        Traits::kBlockM, Traits::kHeadDim / 8, Traits::kRingOffset, "Q");
    expect_layout_bijection<typename Traits::LayoutK>(
        Traits::kBlockN, Traits::kKChunkDim / 8, Traits::kChunkBytes, "K chunk");
    expect_layout_bijection<typename Traits::LayoutV>(
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

template <typename Traits>
void operand_loads_have_no_conflicts() {
    using LayoutV = typename Traits::LayoutV;
    for (int row = 0; row < Traits::kBlockM; row += 8) {
        for (int group = 0; group < Traits::kHeadDim / 8; ++group) {
            expect_equal(
                q_load_passes<typename Traits::LayoutQ>(row, group), kMinPasses16, "load of Q");
        }
    }
    for (int key = 0; key < Traits::kBlockN; key += 32) {
        for (int group = 0; group < Traits::kKChunkDim / 8; ++group) {
            expect_equal(
                k_load_passes<typename Traits::LayoutK>(key, group), kMinPasses16, "load of K");
        }
    }
    for (int key = 0; key < Traits::kVChunkKeys; key += 4) {
        for (int load = 0; load < Traits::kVLoads; ++load) {
            expect_equal(v_load_passes<LayoutV>(key, 8 * load), kMinPasses16, "load of V");
        }
        if (!Traits::kVTail) { continue; }
        const auto tail = [=](int lane) {
            const int d = 64 * Traits::kVLoads + v_tail_column(lane);
            return LayoutV::offset(key + v_operand_key(lane), d / 8) + d % 8 * 2;
        };
        expect_equal(passes(tail, 8), kMinPasses8, "load of V's last 32 columns");
    }
}

// Every group of a chunk is written once, and each of a warp's stores without conflicts.
template <typename Fill, typename Layout>
void expect_good_fill(int threads, int keys, const char *name) {
    std::set<int> written;
    for (int pass = 0; pass < Fill::kKeyPasses; ++pass) {
        for (int part = 0; part < Fill::kParts; ++part) {
            const auto offset = [=](int tid) {
                return Layout::offset(
                    pass * Fill::kKeys + Fill::key(tid), part * Fill::kLanes + Fill::group(tid));
            };
            for (int tid = 0; tid < threads; ++tid) { written.insert(offset(tid)); }
            for (int first = 0; first < threads; first += kWarpSize) {
                expect_equal(passes([=](int lane) { return offset(first + lane); }, 16),
                    kMinPasses16, std::string("fill of ") + name);
            }
        }
    }
    expect_equal(written.size() * kGroupBytes, keys * Layout::kRowBytes,
        std::string("bytes filled of ") + name);
}

template <typename Traits>
void fills_have_no_conflicts() {
    using LayoutQ = typename Traits::LayoutQ;
    expect_good_fill<typename Traits::KFill, typename Traits::LayoutK>(
        Traits::kNThreads, Traits::kBlockN, "K");
    expect_good_fill<typename Traits::VFill, typename Traits::LayoutV>(
        Traits::kNThreads, Traits::kVChunkKeys, "V");
    constexpr int kGroups = Traits::kHeadDim / 8;
    for (int first = 0; first < Traits::kBlockM * kGroups; first += kWarpSize) {
        const auto q = [=](int lane) {
            return LayoutQ::offset((first + lane) / kGroups, (first + lane) % kGroups);
        };
        expect_equal(passes(q, 16), kMinPasses16, "fill of Q, read of O");
    }
}

template <typename Traits>
void o_is_staged_in_two_passes() {
    for (int row = 0; row < Traits::AccO::kRows; ++row) {
        for (int col = 0; col < Traits::AccO::kCols; col += 2) {
            const auto o = [=](int lane) {
                const int d = out_col<Traits::kHeadDim>(lane, col);
                return Traits::LayoutQ::offset(acc_row(lane, row), d / 8) + d % 8 * 2;
            };
            expect(passes(o, 4) <= 2, "staging of O takes more than two passes");
        }
    }
}

// Without the swizzle: what the layouts are for, and a sign that passes() can count.
template <int kRowHalves>
struct PlainLayout {
    static int offset(int row, int group) { return row * kRowHalves * 2 + group * kGroupBytes; }
};

void unswizzled_layouts_conflict() {
    expect_equal(q_load_passes<PlainLayout<256>>(0, 0), 16, "plain Q, rows of 512 bytes");
    expect_equal(q_load_passes<PlainLayout<96>>(0, 0), 8, "plain Q, rows of 192 bytes");
    expect_equal(k_load_passes<PlainLayout<64>>(0, 0), 32, "plain K, rows of 128 bytes");
    expect_equal(k_load_passes<PlainLayout<32>>(0, 0), 16, "plain K, rows of 64 bytes");
    expect_equal(k_load_passes<PlainLayout<48>>(0, 0), 8, "plain K, rows of 96 bytes");
    expect_equal(v_load_passes<PlainLayout<256>>(0, 0), 16, "plain V, rows of 512 bytes");
    expect_equal(v_load_passes<PlainLayout<96>>(0, 0), 8, "plain V, rows of 192 bytes");
}

// A thread finds all its groups of a chunk from the first one.
template <typename Fill, typename Layout>
void expect_fill_offsets(int threads, const char *name) {
    for (int tid = 0; tid < threads; ++tid) {
        const int key = Fill::key(tid), group = Fill::group(tid);
        for (int pass = 0; pass < Fill::kKeyPasses; ++pass) {
            for (int part = 0; part < Fill::kParts; ++part) {
                expect_equal(Layout::offset(key, group) +
                                 Layout::offset(pass * Fill::kKeys, part * Fill::kLanes),
                    Layout::offset(key + pass * Fill::kKeys, group + part * Fill::kLanes),
                    std::string("a thread's other groups of ") + name);
            }
        }
    }
}

// The addresses that the main loop derives from unit 0 are those of the layout.
template <typename Traits>
void operand_addresses_follow_from_the_first() {
    using LayoutQ = typename Traits::LayoutQ;
    using LayoutK = typename Traits::LayoutK;
    using LayoutV = typename Traits::LayoutV;
    for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int group = 0; group < Traits::kHeadDim / 8; ++group) {
            const int row = Traits::kWarpM + q_operand_row(lane);
            expect_equal(
                LayoutQ::from_first(LayoutQ::offset(row, 0), group) + 8 * LayoutQ::kRowBytes,
                LayoutQ::offset(row + 8, group), "address of Q");
        }
        for (int group = 0; group < Traits::kKChunkDim / 8; ++group) {
            const int key = k_operand_key(lane);
            expect_equal(
                LayoutK::from_first(LayoutK::offset(key, 0), group) + 32 * LayoutK::kRowBytes,
                LayoutK::offset(key + 32, group), "address of K");
        }
        const int key = v_operand_key(lane), group = v_operand_group(lane);
        for (int load = 0; load < Traits::kVLoads; ++load) {
            expect_equal(LayoutV::offset(key, group) + 4 * LayoutV::kRowBytes + 128 * load,
                LayoutV::offset(key + 4, group + 8 * load), "address of V");
        }
        const int tail = (64 * Traits::kVLoads + v_tail_column(lane)) / 8;
        expect_equal(LayoutV::offset(key, tail) + 4 * LayoutV::kRowBytes,
            LayoutV::offset(key + 4, tail), "address of V's last 32 columns");
    }
    expect_fill_offsets<typename Traits::KFill, LayoutK>(Traits::kNThreads, "K");
    expect_fill_offsets<typename Traits::VFill, LayoutV>(Traits::kNThreads, "V");
}

////////////////////////////////////////////////////////////////////////////////////////////////////
// Exact S = Q K^T -> P -> O = P V of one warp, lane by lane, on small integers

template <typename Traits>
struct Matrices {
    static constexpr int kM = Traits::kWarpM, kN = Traits::kBlockN, kD = Traits::kHeadDim;
    int q[kM][kD], k[kN][kD], v[kN][kD];
    int score[kM][kN] = {};

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
        for (int row = 0; row < kM; ++row) {
            for (int key = 0; key < kN; ++key) {
                for (int d = 0; d < kD; ++d) { score[row][key] += q[row][d] * k[key][d]; }
            }
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

// Scores as [8-row block][32-key block][lane][register]; each checked against the plain product.
template <typename Traits>
using Scores = std::array<std::array<Accumulator, Traits::kBlockN / 32>, Traits::kBlocksM>;

template <typename Traits>
Scores<Traits> make_scores(const Matrices<Traits> &x) {
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
    const auto x = std::make_unique<Matrices<Traits>>();
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
    const auto x = std::make_unique<Matrices<Traits>>();
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
                int expected = 0;
                for (int key = 0; key < kN; ++key) {
                    expected += x->score[acc_row(lane, row)][key] *
                                x->v[key][out_col<Traits::kHeadDim>(lane, col)];
                }
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

////////////////////////////////////////////////////////////////////////////////////////////////////
// Tiles, masks, scaling

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

const std::vector<std::pair<const char *, void (*)()>> kChecks = {
#define CHECK(name) {#name, name}
#define CHECK_TILES(name) {#name, [] { for_every_tile([](auto tile) { name<decltype(tile)>(); }); }}
    CHECK(fragments_are_bijections),
    CHECK_TILES(acc_fragment_registers_are_a_bijection),
    CHECK_TILES(warp_tiles_are_bijections),
    CHECK_TILES(neighbouring_columns_are_adjacent),
    CHECK_TILES(row_peers_are_the_lanes_of_a_row),
    CHECK_TILES(layouts_are_bijections),
    CHECK_TILES(operand_loads_have_no_conflicts),
    CHECK_TILES(fills_have_no_conflicts),
    CHECK_TILES(o_is_staged_in_two_passes),
    CHECK(unswizzled_layouts_conflict),
    CHECK_TILES(operand_addresses_follow_from_the_first),
    CHECK_TILES(scores_are_exact),
    CHECK_TILES(outputs_are_exact),
    CHECK_TILES(outputs_are_wrong_when_p_is_taken_from_another_lane),
    CHECK_TILES(chunk_stream_visits_every_chunk_once_and_in_order),
    CHECK_TILES(ring_slots_change_hands_at_a_barrier),
    CHECK(key_ranges_are_bottom_right_aligned),
    CHECK(splits_divide_the_tiles_of_a_range),
    CHECK(scaled_probabilities_fit_fp16),
#undef CHECK
#undef CHECK_TILES
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
