// See loops.hpp.
#include "loops.hpp"

using namespace ngpulm;

// `input_ids` are [B, length], `scores` [B, classes]. `begun` gets a flag for each row: whether it is in a loop. Returns -1,
// or the first row for which an end isn't a class.
NGPULM_EXPORT int64_t ngpulm_end_loops(int64_t first, int64_t last, const NgpulmEnds* ends, const int64_t* input_ids,
                                       int64_t length, const bool* rows, float* scores, bool* begun) {
  return guarded([&]() -> int64_t {
    if (!are_classes(*ends)) return first;
    for (int64_t row = first; row < last; ++row)
      begun[row] = end_loop(*ends, input_ids + row * length, length, rows[row], scores + row * ends->classes);
    return -1;
  });
}
