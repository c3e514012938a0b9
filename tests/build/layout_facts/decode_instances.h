// SPDX-License-Identifier: Apache-2.0
// Checks of the decode kernel's instances.
#pragma once

#include <string>

#include "facts.h"
#include "sm70/decode_traits.h"

namespace facts {

using namespace flash::sm70;

// Runs a check for every instance of the kernel; names the one that it fails for.
template <int kHeadDim, int kRows, typename Check>
void for_instance(const Check &check) {
    try {
        check(Flash_decode_traits<kHeadDim, kRows>{});
    } catch (const Failed &failed) {
        throw Failed{"head size " + std::to_string(kHeadDim) + ", " + std::to_string(kRows) +
                     " rows: " + failed.what};
    }
}

template <typename Check>
void for_every_instance(const Check &check) {
    for_instance<64, 8>(check), for_instance<64, 16>(check);
    for_instance<96, 8>(check), for_instance<96, 16>(check);
    for_instance<128, 8>(check), for_instance<128, 16>(check);
    for_instance<192, 8>(check), for_instance<192, 16>(check);
    for_instance<256, 8>(check), for_instance<256, 16>(check);
}

#define CHECK_INSTANCES(name) \
    {#name, [] { for_every_instance([](auto traits) { name<decltype(traits)>(); }); }}

}  // namespace facts
