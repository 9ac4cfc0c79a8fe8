// How differently texts sound; see hf_ngpulm/text/sounds.py.
#include "core.hpp"

using namespace ngpulm;

// Compute the distance of each string of phones to each other one: the least total cost of the changes that turn one into the
// other. The strings of `ours` lie one after the other, number n from `our_starts[n]` to `our_starts[n + 1]`; those of `theirs`
// likewise. `costs` [phones, phones] has the cost of a phone for another one; phone 0 is no phone, and the last one stands for
// all from there on, which differ unless they are equal. `found` gets [num_ours, num_theirs].
NGPULM_EXPORT int64_t ngpulm_phone_distances(int64_t num_ours, int64_t num_theirs, const int64_t* our_starts,
                                             const int64_t* their_starts, const int32_t* ours, const int32_t* theirs,
                                             int64_t phones, const int32_t* costs, int32_t* found) {
  return guarded([&]() -> int64_t {
    const auto cost = [&](int32_t a, int32_t b) {
      const int32_t last = int32_t(phones) - 1;
      return costs[std::min(a, last) * phones + std::min(b, last)];
    };
    std::vector<int32_t> row;
    for (int64_t m = 0; m < num_theirs; ++m) {
      const int32_t* other = theirs + their_starts[m];
      const int64_t width = their_starts[m + 1] - their_starts[m];
      row.resize(width + 1);
      for (int64_t n = 0; n < num_ours; ++n) {
        row[0] = 0;
        for (int64_t k = 0; k < width; ++k) row[k + 1] = row[k] + cost(0, other[k]);
        for (int64_t i = our_starts[n]; i < our_starts[n + 1]; ++i) {
          const int32_t phone = ours[i], deleted = cost(phone, 0);
          int32_t before = row[0];  // of the row above
          row[0] += deleted;
          for (int64_t k = 0; k < width; ++k) {
            const int32_t changed = before + (phone == other[k] ? 0 : cost(phone, other[k]));
            before = row[k + 1];
            row[k + 1] = std::min({changed, before + deleted, row[k] + cost(0, other[k])});
          }
        }
        found[n * num_theirs + m] = row[width];
      }
    }
    return -1;
  });
}
