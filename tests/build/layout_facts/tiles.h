// SPDX-License-Identifier: Apache-2.0
// Checks of the dense kernel's tiles.
#pragma once

#include <string>

#include "facts.h"
#include "sm70/kernel_traits.h"

namespace facts {

using namespace flash::sm70;

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

#define CHECK_TILES(name) \
    {#name, [] { for_every_tile([](auto tile) { name<decltype(tile)>(); }); }}

}  // namespace facts
