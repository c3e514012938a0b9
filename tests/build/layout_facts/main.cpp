// SPDX-License-Identifier: Apache-2.0
// Enumerates the facts that the sm_70 kernels rest on, with the kernels' own constexpr functions,
// on a CPU. Each of the other sources is a topic; any of them can be linked with this one.
//
//   layout_facts --list     names of the checks
//   layout_facts NAME       runs one; exit status 0 if it holds, else 1 and what was found
#include <cstdio>
#include <string>
#include <vector>

#include "facts.h"

std::vector<facts::Check> &facts::checks() {
    static std::vector<Check> all;
    return all;
}

int main(int argc, char **argv) {
    const std::string wanted = argc == 2 ? argv[1] : "";
    for (const auto &[name, check] : facts::checks()) {
        if (wanted == "--list") { std::puts(name); }
        if (wanted != name) { continue; }
        try {
            check();
            return 0;
        } catch (const facts::Failed &failed) {
            std::printf("%s: %s\n", name, failed.what.c_str());
            return 1;
        }
    }
    return wanted == "--list" ? 0 : 2;
}
