// Estimate interpolated modified Kneser-Ney models. hf_ngpulm/ngrams/kneser_ney.py describes the algorithm;
// hf_ngpulm/ngrams/steps/reference.py is the definition.
#include "core.hpp"

using namespace ngpulm;

// For the n-grams `first .. last - 1` of the order below, write the first of the n-grams that extend each: first_child.
NGPULM_EXPORT int64_t ngpulm_first_children(int64_t first, int64_t last, const int64_t* prefixes, int64_t size,
                                            int64_t* first_child) {
  int64_t row = std::lower_bound(prefixes, prefixes + size, first) - prefixes;
  for (int64_t parent = first; parent < last; ++parent) {
    while (row < size && prefixes[row] < parent) ++row;
    first_child[parent] = row;
  }
  return 0;
}

// Write the row, in the order below, of the suffix of the n-grams `first .. last - 1` (without their first token).
// `suffixes_below` has the same rows for the order below.
NGPULM_EXPORT int64_t ngpulm_suffix_rows(int64_t first, int64_t last, const int64_t* prefixes, const int32_t* tokens,
                                         const int32_t* tokens_below, const int32_t* suffixes_below, const int64_t* first_child,
                                         int32_t* out) {
  // Tokens that follow a context also follow its suffix, and both lists ascend. So both lists are walked side by side.
  int64_t context = -1, at = 0, end = 0;
  for (int64_t row = first; row < last; ++row) {
    if (prefixes[row] != context) {
      context = prefixes[row];
      at = first_child[suffixes_below[context]];
      end = first_child[suffixes_below[context] + 1];
    }
    out[row] = int32_t(at = gallop(tokens_below, at, end, tokens[row]));
  }
  return 0;
}

// Add, to the counts of the n-grams of the order below, the n-grams `first .. last - 1` that end in them. Several threads may
// add to the same counts.
NGPULM_EXPORT int64_t ngpulm_left_extensions(int64_t first, int64_t last, const int32_t* suffixes, int64_t* counts) {
  for (int64_t row = first; row < last; ++row) __atomic_fetch_add(counts + suffixes[row], 1, __ATOMIC_RELAXED);
  return 0;
}

// Compute the interpolated probabilities of one order, and each context's weight of the lower order (Chen and Goodman 1998,
// section 4.1; pruning as in KenLM's lmplz). A context is processed with the rows `first .. last - 1` if its first n-gram is
// among them. `discounts` are those of adjusted counts of 0, 1, 2, and 3 or more. Without `dropped`, no n-gram is dropped.
// Without `suffixes`, all n-grams are interpolated with the single lower probability.
NGPULM_EXPORT int64_t ngpulm_discount(int64_t first, int64_t last, int64_t size, const int64_t* prefixes, const int64_t* counts,
                                      const uint8_t* dropped, const double* discounts, const float* lower,
                                      const int32_t* suffixes, float* probabilities, float* weights) {
  const auto discount = [&](int64_t row) { return discounts[std::min<int64_t>(counts[row], 3)]; };
  int64_t row = first;
  while (0 < row && row < last && prefixes[row] == prefixes[row - 1]) ++row;
  while (row < last) {
    const int64_t context = prefixes[row];
    int64_t total = 0, whole = 0, end = row;
    int64_t rows_of[4] = {};  // by adjusted count, so that the sum doesn't depend on the rows' order
    for (; end < size && prefixes[end] == context; ++end) {
      total += counts[end];
      if (dropped && dropped[end])
        whole += counts[end];
      else
        ++rows_of[std::min<int64_t>(counts[end], 3)];
    }
    double spared = double(whole);
    for (int j = 1; j <= 3; ++j) spared += double(rows_of[j]) * discounts[j];
    const double weight = total > 0 ? spared / double(total) : 1.0;
    weights[context] = float(weight);
    for (; row < end; ++row) {
      const double below = lower[suffixes ? suffixes[row] : 0];
      probabilities[row] = float((double(counts[row]) - discount(row)) / double(total) + weight * below);
    }
  }
  return 0;
}
