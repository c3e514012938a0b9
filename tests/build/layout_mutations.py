# SPDX-License-Identifier: Apache-2.0
"""What tests/build/layout_facts/ checks, and wrong headers that it must notice."""

from __future__ import annotations

# What each topic, a source of the program, checks.
CHECKS = {
    "fragments": [
        "fragments_are_bijections",
        "acc_fragment_registers_are_a_bijection",
        "warp_tiles_are_bijections",
        "neighbouring_columns_are_adjacent",
        "row_peers_are_the_lanes_of_a_row",
    ],
    "shared_memory": [
        "layouts_are_bijections",
        "operand_loads_have_no_conflicts",
        "fills_have_no_conflicts",
        "o_is_staged_in_two_passes",
        "unswizzled_layouts_conflict",
        "operand_addresses_follow_from_the_first",
    ],
    "products": [
        "scores_are_exact",
        "outputs_are_exact",
        "outputs_are_wrong_when_p_is_taken_from_another_lane",
    ],
    "mainloop": [
        "chunk_stream_visits_every_chunk_once_and_in_order",
        "ring_slots_change_hands_at_a_barrier",
        "key_ranges_are_bottom_right_aligned",
        "splits_divide_the_tiles_of_a_range",
        "scaled_probabilities_fit_fp16",
    ],
    "decode": [
        "decode_loads_are_consecutive_bytes",
        "decode_scores_have_one_owner",
        "decode_row_peers_are_the_lanes_of_a_row",
        "decode_p_comes_from_the_lanes_of_its_row",
        "decode_q_lies_as_it_is_loaded",
        "decode_o_is_merged_without_conflicts",
    ],
    "decode_products": ["decode_scores_are_exact", "decode_outputs_are_exact"],
    "gqa_wide": [
        "wide_tile_has_owners",
        "wide_row_peers_are_the_lanes_of_a_row",
        "wide_products_reach_their_owners",
        "wide_groups_of_p_meet_their_keys",
        "wide_shared_memory_has_no_conflicts",
        "wide_scores_are_exact",
        "wide_outputs_are_exact",
    ],
    "gqa_schedule": ["gqa_schedule_covers_every_tile_once"],
}
TOPIC_OF = {check: topic for topic, checks in CHECKS.items() for check in checks}

# An edit of a header, and a check that must notice it.
MUTATIONS = {
    "lane bit 1 dropped from C's column": (
        "fragment.h", "(i & 1) + 2 * ((lane >> 1) & 1) + 4 * (i >> 2)", "(i & 1) + 4 * (i >> 2)",
        "fragments_are_bijections",
    ),
    "keys of S in another order": (
        "fragment.h", "32 * (col >> 2) + 16 * ((col >> 1) & 1) + 4 * quad_pair(lane)",
        "32 * (col >> 2) + 4 * ((col >> 1) & 1) + 8 * quad_pair(lane)", "scores_are_exact",
    ),
    "columns of O in another order": (
        "fragment.h", "8 * quad_pair(lane) + 4 * ((col >> 2) & 1)",
        "4 * quad_pair(lane) + 16 * ((col >> 2) & 1)", "outputs_are_exact",
    ),
    "last 32 columns of O in the order of the others": (
        "fragment.h", ": d + 16 * ((col >> 1) & 1) + 4 * quad_pair(lane)",
        ": d + 4 * ((col >> 1) & 1) + 8 * quad_pair(lane)", "outputs_are_exact",
    ),
    "last 32 columns of V spread over both halves of a group": (
        "fragment.h", "return 16 * (lane >> 4) + 4 * quad_pair(lane);",
        "return 4 * (lane >> 4) + 8 * quad_pair(lane);", "operand_loads_have_no_conflicts",
    ),
    "K swizzled by every other key": (
        "smem_layout.h", "row / Rows::kRowsPerSwizzle % Rows::kSwizzleGroups",
        "row / 2 / Rows::kRowsPerSwizzle % Rows::kSwizzleGroups",
        "operand_loads_have_no_conflicts",
    ),
    "rows of 192 bytes swizzled like rows of 128": (
        "smem_layout.h", "static constexpr int kRowsPerSwizzle = 8 / kSwizzleGroups;",
        "static constexpr int kRowsPerSwizzle = 1;", "operand_loads_have_no_conflicts",
    ),
    "half as many barriers": (
        "kernel_traits.h", "return position % kChunksPerRegion == 0;",
        "return position % kRingSlots == 0;", "ring_slots_change_hands_at_a_barrier",
    ),
    "P scaled past fp16": (
        "softmax.h", "kMaxLog2P = 15.f", "kMaxLog2P = 16.f",
        "scaled_probabilities_fit_fp16",
    ),
    "held-back chunks of V of the wrong tile": (
        "kernel_traits.h", "{false, kVChunks + p - kHeldBackEnd, tile - 1}",
        "{false, kVChunks + p - kHeldBackEnd, tile}",
        "chunk_stream_visits_every_chunk_once_and_in_order",
    ),
    "masks aligned at the top left": (
        "mask.h", "position + shift + window_right + 1", "position + window_right + 1",
        "key_ranges_are_bottom_right_aligned",
    ),
    "splits that overlap": (
        "mask.h", "part * split + (split < rest ? split : rest)", "part * split",
        "splits_divide_the_tiles_of_a_range",
    ),
    "keys of a decode score in another order": (
        "decode_fragment.h", "i | ((lane >> 1) & 1) << 1 | ((lane >> 3) & 1) << 2",
        "i | ((lane >> 3) & 1) << 1 | ((lane >> 1) & 1) << 2", "decode_scores_have_one_owner",
    ),
    "rows of a decode score from another lane bit": (
        "decode_fragment.h", "(lane & 1) | ((lane >> 2) & 1) << 1 | (lane >> 4) << 2",
        "(lane & 1) | ((lane >> 3) & 1) << 1 | (lane >> 4) << 2", "decode_scores_are_exact",
    ),
    "a decode load of K with keys and groups exchanged": (
        "decode_fragment.h", "return b_col_coord(lane, 0).col;", "return quad_pair(lane);",
        "decode_loads_are_consecutive_bytes",
    ),
    "decode's row maximum of other lanes": (
        "decode_fragment.h", "step == 0 ? 0b00010 : 0b01000", "step == 0 ? 0b00010 : 0b00100",
        "decode_row_peers_are_the_lanes_of_a_row",
    ),
    "two leaders of a decode row": (
        "decode_fragment.h", "return (lane & 0b01010) == 0;", "return (lane & 0b01000) == 0;",
        "decode_row_peers_are_the_lanes_of_a_row",
    ),
    "decode's rows of O rescaled by others": (
        "decode_fragment.h", "(lane & 0b11011) | (row & 1) << 2",
        "(lane & 0b10111) | (row & 1) << 3", "decode_row_peers_are_the_lanes_of_a_row",
    ),
    "decode's lane of a row in another quad pair": (
        "decode_fragment.h", "(row & 1) | ((row >> 1) & 1) << 2 | (row >> 2) << 4",
        "(row & 1) | ((row >> 1) & 1) << 3 | (row >> 2) << 4",
        "decode_row_peers_are_the_lanes_of_a_row",
    ),
    "decode's P from the lane of other keys": (
        "decode_fragment.h", "pair << 1 | ((lane >> 1) & 1) << 2 | step << 3",
        "step << 1 | ((lane >> 1) & 1) << 2 | pair << 3", "decode_outputs_are_exact",
    ),
    "decode's P from the lane of another row": (
        "decode_fragment.h", "return (lane & 0b10001) | pair << 1 | ((lane >> 1) & 1) << 2",
        "return (lane & 0b10001) | pair << 1 | ((lane >> 2) & 1) << 2",
        "decode_p_comes_from_the_lanes_of_its_row",
    ),
    "decode's Q kept for the lanes of another order": (
        "decode_fragment.h", "(row & 3) | group << 2 | (row >> 2) << 4",
        "(row & 7) | group << 3", "decode_q_lies_as_it_is_loaded",
    ),
    "decode's blocks of Q on top of each other": (
        "decode_traits.h", "(block_m * kKLoads + load)", "(block_m + load)",
        "decode_q_lies_as_it_is_loaded",
    ),
    "decode's rows of O without padding": (
        "decode_traits.h", "kVLoads * kVLoadCols + 4;", "kVLoads * kVLoadCols;",
        "decode_o_is_merged_without_conflicts",
    ),
    "room for the O of one decode warp": (
        "decode_traits.h", "kNWarps * 8 * kORowFloats * 4", "8 * kORowFloats * 4",
        "decode_o_is_merged_without_conflicts",
    ),
    "wide A rows in another order": (
        "gqa_wide_fragment.h",
        "    return m % 4 + 4 * wide_row_pair(lane) + m / 4 * 8;",
        "    return m % 4 + 4 * wide_row_pair(lane) + m / 4 * 4;",
        "wide_products_reach_their_owners",
    ),
    "wide keys of S in another order": (
        "gqa_wide_fragment.h", "16 * (col >> 2) + 8 * wide_col_pair(lane)",
        "16 * (col >> 2) + 8 * wide_row_pair(lane)", "wide_tile_has_owners",
    ),
    "wide B keys of the other quad pairs": (
        "gqa_wide_fragment.h", "b_col_coord(lane, 0).col + 8 * wide_col_pair(lane)",
        "b_col_coord(lane, 0).col + 8 * wide_row_pair(lane)", "wide_scores_are_exact",
    ),
    "wide row maximum of other lanes": (
        "gqa_wide_fragment.h", "return 2 << 2 * step;", "return 2 << step;",
        "wide_row_peers_are_the_lanes_of_a_row",
    ),
    "two leaders of a wide row": (
        "gqa_wide_fragment.h", "return (lane & 0b01010) == 0;", "return (lane & 0b01000) == 0;",
        "wide_row_peers_are_the_lanes_of_a_row",
    ),
    "groups of P with other keys": (
        "gqa_wide_fragment.h", "+ 2 * (group & 1);", "+ 4 * (group & 1);",
        "wide_groups_of_p_meet_their_keys",
    ),
    "groups of P in another place": (
        "gqa_wide_fragment.h", "4 * pair + 2 * wide_col_pair(lane) + ((lane >> 1) & 1)",
        "4 * pair + wide_col_pair(lane) + 2 * ((lane >> 1) & 1)", "wide_outputs_are_exact",
    ),
    "rows of V of neighbouring keys": (
        "gqa_wide_fragment.h", "return k % 2 + k / 2 * 4;", "return k;",
        "wide_groups_of_p_meet_their_keys",
    ),
    "wide columns of O in another order": (
        "gqa_wide_fragment.h", "n / 4 * 8 + 4 * ((col >> 2) & 1)",
        "n / 4 * 4 + 8 * ((col >> 2) & 1)", "wide_outputs_are_exact",
    ),
    "groups of Q without padding": (
        "gqa_wide_traits.h", "kQGroupBytes = (kBlockM + 1)", "kQGroupBytes = (kBlockM + 0)",
        "wide_shared_memory_has_no_conflicts",
    ),
    "groups of K without padding": (
        "gqa_wide_traits.h", "kKGroupBytes = (kBlockN + 4)", "kKGroupBytes = (kBlockN + 0)",
        "wide_shared_memory_has_no_conflicts",
    ),
    "rows of V without padding": (
        "gqa_wide_traits.h", "kHeadDim * 2 + kGroupBytes", "kHeadDim * 2",
        "wide_shared_memory_has_no_conflicts",
    ),
    "parts of a tile that are another tile's": (
        "gqa_schedule.h", "return t * runs / tail + t;", "return t * runs / tail;",
        "gqa_schedule_covers_every_tile_once",
    ),
    "a tile's last part left out": (
        "gqa_schedule.h", "return ((t + 1) * runs - 1) / tail + t + 1;",
        "return (t + 1) * runs / tail + t;", "gqa_schedule_covers_every_tile_once",
    ),
    "runs that miss the tile that they end in": (
        "gqa_schedule.h", "((run + 1) * tail + runs - 1) / runs - run * tail / runs",
        "(run + 1) * tail / runs - run * tail / runs", "gqa_schedule_covers_every_tile_once",
    ),
}  # fmt: skip
