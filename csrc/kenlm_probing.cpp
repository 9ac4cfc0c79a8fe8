// Recover the n-grams of KenLM's probing models from their hashes. hf_ngpulm/formats/kenlm/probing.py defines the keys and
// explains the method.
#include "core.hpp"

namespace ngpulm {
namespace {

constexpr uint64_t KEY_FACTOR = 8978948897894561157u, WORD_FACTOR = 17894857484156487943u;

// Return the inverse of an odd number modulo 2 ** 64. Each step of Newton's method doubles the number of correct bits,
// initially 3.
constexpr uint64_t inverse(uint64_t odd) {
  uint64_t found = odd;
  for (int step = 0; step < 5; ++step) found *= 2 - odd * found;
  return found;
}
constexpr uint64_t INVERSE = inverse(KEY_FACTOR);
static_assert(INVERSE * KEY_FACTOR == 1);

uint64_t change_of(int64_t word) { return uint64_t(word + 1) * WORD_FACTOR; }

}  // namespace
}  // namespace ngpulm

using namespace ngpulm;

// Try each word as the first word of the bigrams `first .. last - 1`. Writes the words that fit, and the last words of these
// bigrams. Returns the number of fits.
NGPULM_EXPORT int64_t ngpulm_try_words(int64_t first, int64_t last, const uint64_t* keys, const int64_t* first_words,
                                       int64_t num_first_words, const uint8_t* ends_longer, int64_t num_words, int64_t* found,
                                       int64_t* last_words) {
  constexpr int64_t KEYS_PER_BLOCK = 1024;
  int64_t hits = 0;
  for (int64_t begin = first; begin < last; begin += KEYS_PER_BLOCK) {
    const int64_t end = std::min(begin + KEYS_PER_BLOCK, last);
    for (int64_t i = 0; i < num_first_words; ++i) {
      const uint64_t change = change_of(first_words[i]);
      int64_t fitting = 0;  // the loop only counts, so that the compiler can vectorise it
      for (int64_t at = begin; at < end; ++at) fitting += ((keys[at] ^ change) * INVERSE) < uint64_t(num_words);
      for (int64_t at = begin; fitting && at < end; ++at) {
        const uint64_t last_word = (keys[at] ^ change) * INVERSE;
        if (last_word >= uint64_t(num_words) || !ends_longer[last_word]) continue;
        ++hits;
        found[at] = first_words[i];
        last_words[at] = int64_t(last_word);
      }
    }
  }
  return hits;
}

// Try pairs of overlapping n-grams: each of the rows `first .. last - 1` of `after`, with `before[begins .. ends - 1]`. If a
// pair's key is in `wanted` (ascending), write both n-grams at the key's index. `maybe` is a bit filter by the upper bits of
// keys. Returns the number of fits.
NGPULM_EXPORT int64_t ngpulm_try_pairs(int64_t first, int64_t last, const int64_t* begins, const int64_t* ends,
                                       const int64_t* before, const int64_t* after, const uint64_t* keys,
                                       const int64_t* first_words, const uint64_t* maybe, int64_t shift, const uint64_t* wanted,
                                       int64_t num_wanted, int64_t* prefixes, int64_t* suffixes) {
  int64_t hits = 0;
  for (int64_t row = first; row < last; ++row) {
    const uint64_t key = keys[after[row]] * KEY_FACTOR;
    for (int64_t at = begins[row]; at < ends[row]; ++at) {
      const uint64_t joined = key ^ change_of(first_words[before[at]]), top = joined >> shift;
      if (!((maybe[top >> 6] >> (top & 63)) & 1)) continue;
      const int64_t place = std::lower_bound(wanted, wanted + num_wanted, joined) - wanted;
      if (place == num_wanted || wanted[place] != joined) continue;
      ++hits;
      prefixes[place] = before[at];
      suffixes[place] = after[row];
    }
  }
  return hits;
}
