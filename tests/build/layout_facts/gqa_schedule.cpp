// SPDX-License-Identifier: Apache-2.0
// Fused GQA prefill: the schedule gives every tile away once, and all SMs the same work.
#include <set>
#include <vector>

#include "facts.h"
#include "sm70/gqa_schedule.h"

using namespace flash::sm70;
using namespace facts;

namespace {

void gqa_schedule_covers_every_tile_once() {
    for (const int sms : {1, 2, 3, 7, 80, 84, 108, 132}) {
        for (int tiles = 1; tiles <= 3 * sms + 2 && tiles <= 400; ++tiles) {
            const GqaSchedule schedule = gqa_schedule(tiles, sms);
            std::vector<int> done(tiles, 0), next_part(tiles, -1);
            std::set<int> parts;
            for (int cta = 0; cta < schedule.ctas(); ++cta) {
                int units = 0;
                for (int i = 0; i < schedule.segments(cta); ++i) {
                    const GqaSegment s = schedule.segment(cta, i);
                    expect(s.tile >= 0 && s.tile < tiles && s.begin < s.end, "an empty segment");
                    expect_equal(s.begin, done[s.tile], "start of a segment");
                    done[s.tile] = s.end;
                    units += s.end - s.begin;
                    if (s.part < 0) {
                        expect_equal(s.end - s.begin, schedule.runs, "a whole tile");
                        continue;
                    }
                    expect(parts.insert(s.part).second, "a part with two writers");
                    expect(s.part < schedule.parts(), "a part without a place");
                    if (s.begin == 0) { next_part[s.tile] = schedule.first_part(s.tile); }
                    expect_equal(s.part, next_part[s.tile]++, "parts of a tile in order");
                    if (s.end == schedule.runs) {
                        expect_equal(
                            schedule.end_part(s.tile), s.part + 1, "last part of a tile");
                    }
                }
                if (cta >= schedule.whole) { expect_equal(units, schedule.tail, "a run's work"); }
            }
            for (const int end : done) { expect_equal(end, schedule.runs, "end of a tile"); }
            // What the merge kernel reads. A number stays unused where a run ends with a tile.
            size_t merged = 0;
            for (int tile = schedule.whole; tile < tiles; ++tile) {
                for (int i = schedule.first_part(tile); i < schedule.end_part(tile); ++i) {
                    expect_equal(parts.count(i), 1, "writers of a part that is merged");
                    ++merged;
                }
            }
            expect_equal(merged, parts.size(), "parts that are merged");
        }
    }
}

const Register kChecks = {
    CHECK(gqa_schedule_covers_every_tile_once),
};

}  // namespace
