// Count n-grams. hf_ngpulm/ngrams/counting.py describes the algorithm; hf_ngpulm/ngrams/steps/reference.py is the definition.
//
// An n-gram of the highest order is a tuple of words of 63 bits, whose digits in base V + 4 are its tokens (see
// hf_ngpulm/ngrams/steps/__init__.py). The digit 0 means "no token" and occurs only after the last token. Arrays of n-grams
// are [words, rows].
#include <numeric>

#include "core.hpp"

// See hf_ngpulm/ngrams/steps/cpu.py.
struct NgpulmPacking {
  const int64_t* lengths;
  int64_t num_words, base, end;
};

namespace ngpulm {
namespace {

// A run of n-grams (see the comment above).
struct Rows {
  const int64_t* words;
  int64_t num_words, size;

  int64_t word(int64_t k, int64_t row) const { return words[k * size + row]; }

  // Compare a row with a row of another run: below 0 for less, 0 for equal, above 0 for greater.
  int compare(int64_t row, const Rows& other, int64_t other_row) const {
    for (int64_t k = 0; k < num_words; ++k)
      if (const int64_t mine = word(k, row), yours = other.word(k, other_row); mine != yours) return mine < yours ? -1 : 1;
    return 0;
  }
  bool is_new(int64_t row) const { return row == 0 || compare(row, *this, row - 1) != 0; }
};

// Walk through the distinct n-grams of two ascending runs in order. Calls `take(row of the first run, row of the second)`; -1
// stands for no row.
template <class Take>
void merge(const Rows& first, const Rows& second, Take&& take) {
  int64_t i = 0, j = 0;
  while (i < first.size || j < second.size) {
    const int order = i == first.size ? 1 : j == second.size ? -1 : first.compare(i, second, j);
    take(order <= 0 ? i++ : -1, order >= 0 ? j++ : -1);
  }
}

struct Key {
  uint64_t word;
  int64_t row;
};

constexpr int RADIX_BITS = 11;

// Sort by some bits of the words. The sort is stable.
void sort_by_digit(std::vector<Key>& keys, std::vector<Key>& room, int shift) {
  const auto digit = [shift](const Key& key) { return (key.word >> shift) & ((1 << RADIX_BITS) - 1); };
  std::vector<size_t> next((1 << RADIX_BITS) + 1);
  for (const Key& key : keys) ++next[digit(key) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (const Key& key : keys) room[next[digit(key)]++] = key;
  keys.swap(room);
}

// The tokens of one row after another. Only tokens that differ from those of the previous row are computed.
class Tokens {
 public:
  explicit Tokens(const NgpulmPacking& packing) : packing(packing) {
    for (int64_t k = 0; k < packing.num_words; ++k) order += packing.lengths[k];
    prefixes.assign(order, -1);
    digits.assign(order, -1);
  }

  // Advance to a row after the last one.
  void read(const Rows& rows, int64_t row) {
    bool same = true;
    int64_t begin = 0;
    shared = order;
    for (int64_t k = 0; k < packing.num_words; begin += packing.lengths[k], ++k) {
      int64_t at = begin + packing.lengths[k] - 1;
      // Remove 0, 1, ... last digits from the word, until it equals the previous row's word.
      for (int64_t prefix = rows.word(k, row); at >= begin && prefix != prefixes[at]; --at) {
        prefixes[at] = prefix;
        digits[at] = prefix % packing.base;
        prefix /= packing.base;
      }
      if (same && at + 1 < begin + packing.lengths[k]) {
        same = false;
        shared = at + 1;
      }
    }
    length = int64_t(std::find(digits.begin() + shared, digits.end(), 0) - digits.begin());
  }

  const NgpulmPacking& packing;
  int64_t order = 0;
  std::vector<int64_t> prefixes, digits;
  int64_t shared = 0, length = 0;  // number of tokens shared with the previous row; number of tokens
};

}  // namespace
}  // namespace ngpulm

using namespace ngpulm;

// Pack the n-gram that starts at each of the first `num_starts` positions, cut after its </s>: words [W, num_starts].
NGPULM_EXPORT int64_t ngpulm_pack(const int32_t* digits, int64_t num_digits, int64_t num_starts, const NgpulmPacking* packing,
                                  int64_t* words) {
  int64_t offset = 0;
  for (int64_t k = 0; k < packing->num_words; offset += packing->lengths[k++]) {
    const int64_t length = packing->lengths[k];
    int64_t sentence_end = -1, top = 1, word = 0;
    for (int64_t i = 1; i < length; ++i) top *= packing->base;
    for (int64_t start = 0; start < num_starts; ++start) {
      const auto digit = [&](int64_t at) -> int64_t { return at <= sentence_end && at < num_digits ? digits[at] : 0; };
      if (start > sentence_end) {
        sentence_end = std::find(digits + start, digits + num_digits, packing->end) - digits;
        word = 0;
        for (int64_t i = 0; i < length; ++i) word = word * packing->base + digit(start + offset + i);
      } else {
        word = (word - digit(start - 1 + offset) * top) * packing->base + digit(start + offset + length - 1);
      }
      words[k * num_starts + start] = word;
    }
  }
  return 0;
}

// Compute the permutation [size] that sorts n-grams.
NGPULM_EXPORT int64_t ngpulm_sort(const int64_t* words, int64_t num_words, int64_t size, int64_t* by_key) {
  return guarded([&]() -> int64_t {
    const Rows rows{words, num_words, size};
    std::vector<Key> keys(size), room(size);
    uint64_t used = 0;  // bits
    for (int64_t row = 0; row < size; ++row) {
      keys[row] = {uint64_t(words[row]), row};
      used |= keys[row].word;
    }
    for (int shift = 0; shift < 63 && used >> shift; shift += RADIX_BITS) sort_by_digit(keys, room, shift);
    // The first word is nearly always decisive; few rows share it.
    for (int64_t row = 0, end; row < size; row = end) {
      for (end = row + 1; end < size && keys[end].word == keys[row].word; ++end) {
      }
      if (end - row > 1)
        std::sort(keys.begin() + row, keys.begin() + end,
                  [&](const Key& one, const Key& other) { return rows.compare(one.row, rows, other.row) < 0; });
    }
    for (int64_t row = 0; row < size; ++row) by_key[row] = keys[row].row;
    return 0;
  });
}

// Return the number of different n-grams in an ascending run.
NGPULM_EXPORT int64_t ngpulm_count_distinct(const int64_t* words, int64_t num_words, int64_t size) {
  const Rows rows{words, num_words, size};
  int64_t total = 0;
  for (int64_t row = 0; row < size; ++row) total += rows.is_new(row);
  return total;
}

// Write the different n-grams of an ascending run, and the number of occurrences of each.
NGPULM_EXPORT int64_t ngpulm_count_equal(const int64_t* words, int64_t num_words, int64_t size, int64_t distinct, int64_t* out,
                                         int64_t* counts) {
  const Rows rows{words, num_words, size};
  int64_t at = -1;
  for (int64_t row = 0; row < size; ++row) {
    if (rows.is_new(row)) {
      ++at;
      for (int64_t k = 0; k < num_words; ++k) out[k * distinct + at] = rows.word(k, row);
      counts[at] = 0;
    }
    ++counts[at];
  }
  return 0;
}

// Return the number of different n-grams in two runs together.
NGPULM_EXPORT int64_t ngpulm_merged_size(const int64_t* first, int64_t first_size, const int64_t* second, int64_t second_size,
                                         int64_t num_words) {
  int64_t total = 0;
  merge(Rows{first, num_words, first_size}, Rows{second, num_words, second_size}, [&](int64_t, int64_t) { ++total; });
  return total;
}

// Merge two runs into one run of that many n-grams. The counts of n-grams in both runs are added.
NGPULM_EXPORT int64_t ngpulm_merge(const int64_t* first, const int64_t* first_counts, int64_t first_size, const int64_t* second,
                                   const int64_t* second_counts, int64_t second_size, int64_t num_words, int64_t size,
                                   int64_t* words, int64_t* counts) {
  const Rows left{first, num_words, first_size}, right{second, num_words, second_size};
  int64_t row = 0;
  merge(left, right, [&](int64_t i, int64_t j) {
    for (int64_t k = 0; k < num_words; ++k) words[k * size + row] = i >= 0 ? left.word(k, i) : right.word(k, j);
    counts[row++] = (i >= 0 ? first_counts[i] : 0) + (j >= 0 ? second_counts[j] : 0);
  });
  return 0;
}

// Count the n-grams of each order that are new in the rows `first .. last - 1` of an ascending run: sizes [order]. `stride` is
// the distance of the run's words.
NGPULM_EXPORT int64_t ngpulm_trie_sizes(int64_t first, int64_t last, int64_t* sizes, const int64_t* words, int64_t stride,
                                        const NgpulmPacking* packing) {
  return guarded([&]() -> int64_t {
    const Rows rows{words, packing->num_words, stride};
    Tokens tokens(*packing);
    if (first > 0) tokens.read(rows, first - 1);
    std::fill_n(sizes, tokens.order, 0);
    for (int64_t row = first; row < last; ++row) {
      tokens.read(rows, row);
      for (int64_t n = tokens.shared; n < tokens.length; ++n) ++sizes[n];
    }
    return 0;
  });
}

// Write these n-grams, one order after the other: the row of the prefix in the order below, the last token, and the number of
// occurrences. `starts` [order] is the row of each order's first n-gram. `arrays` [3 * order] has the arrays of each order:
// prefixes (int64), tokens (int32) and counts (int64). `carried` [order] gets the occurrences, in these rows, of each order's
// last n-gram before them.
NGPULM_EXPORT int64_t ngpulm_trie(int64_t first, int64_t last, const int64_t* starts, int64_t* carried, const int64_t* words,
                                  const int64_t* run_counts, int64_t stride, const NgpulmPacking* packing,
                                  const int64_t* arrays) {
  return guarded([&]() -> int64_t {
    const Rows rows{words, packing->num_words, stride};
    Tokens tokens(*packing);
    if (first > 0) tokens.read(rows, first - 1);
    std::vector<int64_t> row_of(starts, starts + tokens.order);  // row of the present n-gram in each order
    for (int64_t& row : row_of) --row;
    std::fill_n(carried, tokens.order, 0);
    std::vector<int64_t*> total;  // where the occurrences of the present n-grams are counted
    for (int64_t n = 0; n < tokens.order; ++n) total.push_back(carried + n);
    for (int64_t row = first; row < last; ++row) {
      tokens.read(rows, row);
      for (int64_t n = tokens.shared; n < tokens.length; ++n) {
        const int64_t at = ++row_of[n];
        reinterpret_cast<int64_t*>(arrays[3 * n])[at] = n ? row_of[n - 1] : 0;
        reinterpret_cast<int32_t*>(arrays[3 * n + 1])[at] = int32_t(tokens.digits[n] - 1);
        *(total[n] = reinterpret_cast<int64_t*>(arrays[3 * n + 2]) + at) = 0;
      }
      for (int64_t n = 0; n < tokens.length; ++n) *total[n] += run_counts[row];
    }
    return 0;
  });
}
