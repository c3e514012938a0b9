// SPDX-License-Identifier: Apache-2.0
// What shared memory and the matrix instruction do with a warp's lanes, and numbers for them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>

#include "facts.h"
#include "sm70/fragment.h"

namespace facts {

using namespace flash::sm70;

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

// Small integers, and the plain products.
template <int kM, int kN, int kD>
struct Matrices {
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

    int output(int row, int d) const {
        int sum = 0;
        for (int key = 0; key < kN; ++key) { sum += score[row][key] * v[key][d]; }
        return sum;
    }
};

}  // namespace facts
