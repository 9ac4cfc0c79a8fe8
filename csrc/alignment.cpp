// The alignment that separates errors on entities from other errors; see hf_ngpulm/evaluation/entities.py.
#include "core.hpp"

namespace ngpulm {

namespace {

// Each number holds three counts; see hf_ngpulm/evaluation/entities.py.
constexpr int64_t FIRST = int64_t(1) << 42, SECOND = int64_t(1) << 21, HIGHEST = std::numeric_limits<int64_t>::max();

struct Counts {
  int64_t first = HIGHEST, second = HIGHEST;

  void take_lower(int64_t a, int64_t b) {
    if (a < first || (a == first && b < second)) first = a, second = b;
  }
};

}  // namespace

}  // namespace ngpulm

using namespace ngpulm;

// Compute the lowest counts of all alignments of two texts. `covered` marks words of entities, `inside` [said_words + 1]
// marks places between two words of an entity. `said_ends` and `heard_ends` [words + 1, 2] have the number and the length of
// the entity that ends before each word (-1 and 0 for none); no entity is longer than `longest`. `found` gets the two
// numbers. Returns -1, or the position at which an entity doesn't fit.
NGPULM_EXPORT int64_t ngpulm_lowest_counts(int64_t said_words, int64_t heard_words, const int64_t* said, const int64_t* heard,
                                           const uint8_t* covered, const uint8_t* inside, const int64_t* said_ends,
                                           const int64_t* heard_ends, int64_t occurrences, int64_t longest, int64_t* found) {
  return guarded([&]() -> int64_t {
    const int64_t rows = longest + 1, width = heard_words + 1;  // rows of the table that later rows read
    std::vector<Counts> table(rows * width);
    for (int64_t i = 0; i <= said_words; ++i) {
      Counts* row = table.data() + i % rows * width;
      const Counts* above = table.data() + (i + rows - 1) % rows * width;
      for (int64_t j = 0; j <= heard_words; ++j) {
        Counts best;
        if (i == 0 && j == 0) best = {occurrences, 0};
        if (j > 0)  // insertion
          best.take_lower(row[j - 1].first + FIRST + (inside[i] ? SECOND : 0), row[j - 1].second + (inside[i] ? 1 : 0));
        if (i > 0) {  // deletion
          const int64_t in_entity = covered[i - 1] ? SECOND : 0;
          best.take_lower(above[j].first + FIRST + in_entity, above[j].second);
          if (j > 0) {  // a recognised word, or a substitution
            const Counts& before = above[j - 1];
            const int64_t added = said[i - 1] != heard[j - 1] ? FIRST + in_entity : 0;
            best.take_lower(before.first + added, before.second + added);
          }
          if (j > 0 && said_ends[2 * i] >= 0 && said_ends[2 * i] == heard_ends[2 * j]) {  // all words of an entity at once
            const int64_t length = said_ends[2 * i + 1];
            if (length > std::min(i, j) || length > longest) return i;
            const Counts& before = table[(i - length) % rows * width + j - length];
            best.take_lower(before.first - 1, before.second);
          }
        }
        row[j] = best;
      }
    }
    const Counts& last = table[said_words % rows * width + heard_words];
    found[0] = last.first, found[1] = last.second;
    return -1;
  });
}
