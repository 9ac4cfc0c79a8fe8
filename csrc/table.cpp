// Find n-grams in a table while it is built; see hf_ngpulm/ngrams/table.py.
#include "core.hpp"

// The orders added so far; see hf_ngpulm/ngrams/table.py. Nodes number their n-grams consecutively after the empty n-gram
// (node 0). The children of a node are first_child[node] .. first_child[node + 1] - 1, in ascending order of tokens.
// `unigram_of` is 0 for a token without a unigram.
struct NgpulmNGramNodes {
  const int32_t* tokens;
  const int64_t *first_child, *unigram_of;
  int64_t num_ids;
};

using namespace ngpulm;

// For the n-grams `first .. last - 1` of tokens [N, order], write the row of the prefix (without the last token) in the order
// below, whose first node is `first_node`; -1 if there is no such row.
NGPULM_EXPORT int64_t ngpulm_find_prefixes(int64_t first, int64_t last, const NgpulmNGramNodes* nodes, const int32_t* tokens,
                                           int64_t order, int64_t first_node, int64_t* prefixes) {
  return guarded([&]() -> int64_t {
    const auto child = [&](int64_t node, int32_t token) -> int64_t {
      const int32_t *const begin = nodes->tokens + nodes->first_child[node], *const end =
                                                                                 nodes->tokens + nodes->first_child[node + 1];
      const int32_t* const at = std::lower_bound(begin, end, token);
      return at < end && *at == token ? at - nodes->tokens : 0;
    };
    std::vector<int64_t> path(order,
                              0);  // nodes of the previous n-gram's first 1, 2, ... tokens, which n-grams often share
    for (int64_t row = first; row < last; ++row) {
      const int32_t* const ngram = tokens + row * order;
      int64_t shared = 0;
      if (row > first)
        while (shared < order - 1 && ngram[shared] == ngram[shared - order]) ++shared;
      for (int64_t k = shared; k < order - 1; ++k) {
        const bool is_token = ngram[k] >= 0 && ngram[k] < nodes->num_ids;
        path[k] = !is_token ? 0 : k == 0 ? nodes->unigram_of[ngram[0]] : path[k - 1] == 0 ? 0 : child(path[k - 1], ngram[k]);
      }
      prefixes[row] = path[order - 2] == 0 ? -1 : path[order - 2] - first_node;
    }
    return 0;
  });
}
