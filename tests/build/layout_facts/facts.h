// SPDX-License-Identifier: Apache-2.0
// Checks that have a name and fail with what was found. Knows nothing of the kernels.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace facts {

struct Failed {
    std::string what;
};

inline void expect(bool holds, const std::string &what) {
    if (!holds) { throw Failed{what}; }
}

inline void expect_equal(long got, long expected, const std::string &what) {
    expect(got == expected,
        what + ": got " + std::to_string(got) + ", expected " + std::to_string(expected));
}

struct Check {
    const char *name;
    void (*run)();
};

// Of all the topics that are linked together.
std::vector<Check> &checks();

struct Register {
    Register(std::initializer_list<Check> more) {
        checks().insert(checks().end(), more.begin(), more.end());
    }
};

#define CHECK(name) {#name, name}

}  // namespace facts
