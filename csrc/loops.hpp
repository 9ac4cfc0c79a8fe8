// Loops in transcripts, as defined in hf_ngpulm/search/attention_step/loops.
#pragma once
#include "core.hpp"

// See hf_ngpulm/search/attention_step/loops/cpu.py.
struct NgpulmEnds {
  const int8_t* roles;
  const int64_t* ends;
  int64_t num_roles, num_ends, classes;
};

namespace ngpulm {

constexpr int64_t LONGEST = 24, TIMES = 3, SHORTEST = 8, ENDLESS_TIMES = 6, ENDLESS = 24, ENDLESS_SHARE = 8;
constexpr int64_t WINDOW = ENDLESS_TIMES * LONGEST;
constexpr int8_t START_ROLE = 4;  // see `Role` in attention_step.cpp

// Return whether a row of tokens, in reverse order, begins with `times` repeats of a phrase. One in `share` tokens may differ;
// none may if `share` is 0.
inline bool in_a_loop(const int64_t* said, int64_t size, int64_t times, int64_t shortest, int64_t share) {
  for (int64_t period = 1; period <= LONGEST; ++period) {
    const int64_t needed = std::max((times - 1) * period, shortest - period), allowed = share ? needed / share : 0;
    int64_t others = 0;
    for (int64_t i = 0; i < needed && others <= allowed; ++i) others += i + period >= size || said[i] != said[i + period];
    if (others <= allowed) return true;
  }
  return false;
}

inline void rule_out_all_but(const NgpulmEnds& of, float* x) {
  std::vector<float> kept(of.num_ends);
  bool can_end = false;
  for (int64_t i = 0; i < of.num_ends; ++i) can_end |= (kept[i] = x[of.ends[i]]) > NEG_INF;
  if (!can_end) return;
  std::fill(x, x + of.classes, NEG_INF);
  for (int64_t i = 0; i < of.num_ends; ++i) x[of.ends[i]] = kept[i];
}

// Return whether a row of tokens is in a loop. If the loop is long and `may_end`, rule out all classes except the ends.
inline bool end_loop(const NgpulmEnds& of, const int64_t* tokens, int64_t length, bool may_end, float* x) {
  int64_t said[WINDOW], size = 0;
  for (const int64_t* token = tokens + length; size < std::min(length, WINDOW); ++size) {
    --token;
    if (*token < 0 || *token >= of.num_roles || of.roles[*token] & START_ROLE) break;
    said[size] = *token;
  }
  if (!in_a_loop(said, size, TIMES, SHORTEST, 0)) return false;
  if (may_end && in_a_loop(said, size, ENDLESS_TIMES, ENDLESS, ENDLESS_SHARE)) rule_out_all_but(of, x);
  return true;
}

// Whether all ends are classes.
inline bool are_classes(const NgpulmEnds& of) {
  return std::all_of(of.ends, of.ends + of.num_ends, [&](int64_t end) { return end >= 0 && end < of.classes; });
}

}  // namespace ngpulm
