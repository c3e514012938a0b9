// SPDX-License-Identifier: Apache-2.0
// Who owns which element of a fragment and of a warp tile.
#include <map>
#include <set>
#include <string>
#include <utility>

#include "sm70/fragment.h"
#include "tiles.h"

using namespace flash::sm70;
using namespace facts;

namespace {

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

const Register kChecks = {
    CHECK(fragments_are_bijections),
    CHECK_TILES(acc_fragment_registers_are_a_bijection),
    CHECK_TILES(warp_tiles_are_bijections),
    CHECK_TILES(neighbouring_columns_are_adjacent),
    CHECK_TILES(row_peers_are_the_lanes_of_a_row),
};

}  // namespace
