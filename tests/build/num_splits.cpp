// SPDX-License-Identifier: Apache-2.0
// For every four numbers of standard input (CTAs, key tiles, slots, largest number of splits) the
// number of splits that the library chooses.
#include <cstdint>
#include <iostream>

#include "sm70/num_splits.h"

int main() {
    flash::sm70::SplitProblem problem;
    while (std::cin >> problem.ctas >> problem.key_tiles >> problem.slots >> problem.max_splits) {
        std::cout << flash::sm70::choose_num_splits(problem) << "\n";
    }
}
