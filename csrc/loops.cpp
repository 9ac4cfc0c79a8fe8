// Loops that transcripts fall into (hf_ngpulm/search/attention_step/loops says what they are).
#include "core.hpp"

using namespace ngpulm;

namespace {

constexpr int64_t LONGEST = 24, TIMES = 3, SHORTEST = 8, ENDLESS_TIMES = 6, ENDLESS = 24, ENDLESS_SHARE = 8;
constexpr int64_t WINDOW = ENDLESS_TIMES * LONGEST;
constexpr int8_t START = 4;  // see `Role` in attention_step.cpp

// Whether a row of tokens, the last one first, begins with a phrase that is said so many times, but for 1 of `share` tokens (0:
// for none).
bool in_a_loop(const int64_t* said, int64_t size, int64_t times, int64_t shortest, int64_t share) {
  for (int64_t period = 1; period <= LONGEST; ++period) {
    const int64_t needed = std::max((times - 1) * period, shortest - period), allowed = share ? needed / share : 0;
    int64_t others = 0;
    for (int64_t i = 0; i < needed && others <= allowed; ++i) others += i + period >= size || said[i] != said[i + period];
    if (others <= allowed) return true;
  }
  return false;
}

void rule_out_all_but(const int64_t* ends, int64_t num_ends, int64_t classes, float* x) {
  std::vector<float> kept(num_ends);
  bool can_end = false;
  for (int64_t i = 0; i < num_ends; ++i) can_end |= (kept[i] = x[ends[i]]) > NEG_INF;
  if (!can_end) return;
  std::fill(x, x + classes, NEG_INF);
  for (int64_t i = 0; i < num_ends; ++i) x[ends[i]] = kept[i];
}

}  // namespace

// `input_ids` are [B, length], `scores` [B, classes]; `begun` gets which rows are in a loop. Returns -1, or the first row for which
// an end is no class.
NGPULM_EXPORT int64_t ngpulm_end_loops(int64_t first, int64_t last, const int64_t* input_ids, int64_t length, const int8_t* roles,
                                       int64_t num_roles, const bool* rows, const int64_t* ends, int64_t num_ends, int64_t classes,
                                       float* scores, bool* begun) {
  return guarded([&]() -> int64_t {
    for (int64_t i = 0; i < num_ends; ++i)
      if (ends[i] < 0 || ends[i] >= classes) return first;
    for (int64_t row = first; row < last; ++row) {
      int64_t said[WINDOW], size = 0;
      for (const int64_t* token = input_ids + (row + 1) * length; size < std::min(length, WINDOW); ++size) {
        --token;
        if (*token < 0 || *token >= num_roles || roles[*token] & START) break;
        said[size] = *token;
      }
      begun[row] = in_a_loop(said, size, TIMES, SHORTEST, 0);
      if (begun[row] && rows[row] && in_a_loop(said, size, ENDLESS_TIMES, ENDLESS, ENDLESS_SHARE))
        rule_out_all_but(ends, num_ends, classes, scores + row * classes);
    }
    return -1;
  });
}
