// SPDX-License-Identifier: Apache-2.0
// Layouts in shared memory, and bank conflicts of what is stored and loaded there.
#include <set>
#include <string>

#include "model.h"
#include "sm70/smem_layout.h"
#include "tiles.h"

using namespace flash::sm70;
using namespace facts;

namespace {

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

const Register kChecks = {
    CHECK_TILES(layouts_are_bijections),
    CHECK_TILES(operand_loads_have_no_conflicts),
    CHECK_TILES(fills_have_no_conflicts),
    CHECK_TILES(o_is_staged_in_two_passes),
    CHECK(unswizzled_layouts_conflict),
    CHECK_TILES(operand_addresses_follow_from_the_first),
};

}  // namespace
