// Build the automaton of a table of n-grams. hf_ngpulm/automaton/steps/reference.py is the definition.
// hf_ngpulm/automaton/steps/cpu.py has the order of the steps.
//
// The table becomes a trie in compressed rows. Node 0 is the empty context; the next nodes are the n-grams of all orders, one
// order after the other. The children of a node are first_child[node] .. first_child[node + 1] - 1. Each function processes
// the contexts `first .. last - 1`, which all have the same order, after all shorter contexts have been processed.
#include "core.hpp"

// See hf_ngpulm/automaton/steps/cpu.py.
struct NgpulmNGramTrie {
  int32_t *first_child, *tokens, *unigram_of, *fail;
  uint8_t *possible, *followed;
  int32_t *state_of, num_contexts, vocab_size;
};

// The arrays of arcs to write, and the values that determine the arcs' weights.
struct NgpulmArcWriter {
  int32_t* arc_offsets;
  void* arc_tokens;
  float* arc_weights;
  int32_t* arc_targets;
  const int64_t* unk_tokens;
  int64_t num_unk_tokens;
  int32_t start_state, token_bytes;
  float share, no_share;
};

namespace ngpulm {
namespace {

struct NGramTrie : NgpulmNGramTrie {
  int32_t eos() const { return vocab_size + 1; }
  int32_t unk() const { return vocab_size + 2; }

  // Return the first of the nodes `low .. high - 1` with this token or a higher one. The tokens ascend, and the node is near
  // `low`.
  int32_t at_least(int32_t low, int32_t high, int32_t token) const { return int32_t(gallop(tokens, low, high, token)); }

  // Return the node of a token after the longest suffix of a context that the token follows; the root if the token has no
  // unigram.
  int32_t after_suffix(int32_t suffix, int32_t token) const {
    for (; suffix != 0; suffix = fail[suffix]) {
      const int32_t high = first_child[suffix + 1], at = at_least(first_child[suffix], high, token);
      if (at < high && tokens[at] == token) return at;
    }
    return unigram_of[token];
  }
};

// Looks up a context's next tokens after the context's suffix. Most tokens that follow a context also follow its suffix, and
// both lists ascend. So both lists are walked side by side.
struct SuffixWalk {
  const NGramTrie& trie;
  int32_t suffix, at, high;

  SuffixWalk(const NGramTrie& trie, int32_t suffix)
      : trie(trie), suffix(suffix), at(trie.first_child[suffix]), high(trie.first_child[suffix + 1]) {}

  int32_t node_of(int32_t token) {
    if (suffix == 0) return trie.unigram_of[token];
    at = trie.at_least(at, high, token);
    return at < high && trie.tokens[at] == token ? at : trie.after_suffix(trie.fail[suffix], token);
  }
};

// Insert an arc for each token of <unk> into a state's arcs `begin .. end - 1`, from the last arc to the first.
template <class Token>
void merge_copies(const NgpulmArcWriter& out, Token* arc_tokens, int32_t begin, int32_t end, float weight, int32_t target) {
  int32_t arc = end - 1, at = end + int32_t(out.num_unk_tokens) - 1;
  for (int64_t i = out.num_unk_tokens; i-- > 0; --at) {
    for (; arc >= begin && arc_tokens[arc] > out.unk_tokens[i]; --arc, --at) {
      arc_tokens[at] = arc_tokens[arc];
      out.arc_weights[at] = out.arc_weights[arc];
      out.arc_targets[at] = out.arc_targets[arc];
    }
    arc_tokens[at] = Token(out.unk_tokens[i]);
    out.arc_weights[at] = weight;
    out.arc_targets[at] = target;
  }
}

}  // namespace
}  // namespace ngpulm

using namespace ngpulm;

// For the n-grams `first .. last - 1` of an order, write their tokens, and the first child of each context that they follow.
// `parents` are the nodes of the order below, whose rows the prefixes are; `first_node` is the first node of this order.
// Returns -1, or the first row that isn't sorted by (prefix, token), or whose prefix or token doesn't exist.
NGPULM_EXPORT int64_t ngpulm_trie_children(int64_t first, int64_t last, const NgpulmNGramTrie* trie, const int64_t* prefixes,
                                           const int32_t* tokens, int64_t rows, int64_t first_parent, int64_t end_parent,
                                           int64_t first_node) {
  const int64_t parents = end_parent - first_parent;
  int64_t prefix = first ? prefixes[first - 1] : -1;
  int32_t token = first ? tokens[first - 1] : -1;
  if (prefix < -1 || prefix >= parents) return first - 1;
  for (int64_t row = first; row < last; ++row) {
    if (prefixes[row] < std::max<int64_t>(prefix, 0) || prefixes[row] >= parents) return row;
    if (tokens[row] < 0 || tokens[row] >= trie->vocab_size + 3 || (prefixes[row] == prefix && tokens[row] <= token)) return row;
    while (prefix < prefixes[row]) trie->first_child[first_parent + ++prefix] = int32_t(first_node + row);
    token = trie->tokens[first_node + row] = tokens[row];
  }
  if (last == rows)  // the children of the last contexts end where the next order begins
    while (prefix < parents) trie->first_child[first_parent + ++prefix] = int32_t(first_node + last);
  return -1;
}

// Link the children of the contexts to their longest proper suffix that is a node (Aho and Corasick 1975).
NGPULM_EXPORT int64_t ngpulm_trie_link(int64_t first, int64_t last, const NgpulmNGramTrie* given) {
  const NGramTrie trie{*given};
  for (int64_t context = first; context < last; ++context) {
    SuffixWalk suffix(trie, trie.fail[context]);
    for (int32_t node = trie.first_child[context]; node < trie.first_child[context + 1]; ++node) {
      const int32_t token = trie.tokens[node];
      trie.followed[node] = trie.followed[context] && trie.possible[token] && token != trie.eos();
      trie.fail[node] = suffix.node_of(token);
    }
  }
  return -1;
}

// Mark the contexts that are states. `counts` gets the number of states, the number of reachable n-grams after them, and the
// number of those that end in <unk>. `backoffs` are the backoffs of this order, whose first context is `first_context`.
NGPULM_EXPORT int64_t ngpulm_mark_states(int64_t first, int64_t last, int64_t* counts, const NgpulmNGramTrie* given,
                                         const float* backoffs, int64_t first_context) {
  const NGramTrie trie{*given};
  int64_t states = 0, met = 0, unks = 0;
  for (int64_t context = first; context < last; ++context) {
    if (!trie.followed[context]) continue;
    const int32_t low = trie.first_child[context], high = trie.first_child[context + 1];
    int64_t met_here = 0;
    for (int32_t node = low; node < high; ++node) met_here += trie.possible[trie.tokens[node]];
    if (met_here == 0 && backoffs[context - first_context] == 0) continue;
    trie.state_of[context] = 1;
    ++states;
    met += met_here;
    unks += high > low && trie.tokens[high - 1] == trie.unk() && trie.possible[trie.unk()];
  }
  counts[0] = states, counts[1] = met, counts[2] = unks;
  return -1;
}

// Number the contexts that are states, beginning with `state`. All other contexts get the number of their longest suffix that
// is a state.
NGPULM_EXPORT int64_t ngpulm_number_states(int64_t first, int64_t last, int64_t state, const NgpulmNGramTrie* given,
                                           const float* backoffs, int64_t first_context, int32_t* backoff_states,
                                           float* backoff_weights) {
  const NGramTrie trie{*given};
  for (int64_t context = first; context < last; ++context) {
    const int32_t suffix = trie.state_of[trie.fail[context]];
    if (trie.state_of[context] == 0) {
      trie.state_of[context] = suffix;
      continue;
    }
    trie.state_of[context] = int32_t(state);
    backoff_states[state] = suffix;
    backoff_weights[state] = backoffs[context - first_context];
    ++state;
  }
  return -1;
}

// Write the arcs of contexts. `state` is the first of their states, `arc` the start of its arcs. `log_probs` belong to the
// order above, whose first node is `first_node`.
NGPULM_EXPORT int64_t ngpulm_write_arcs(int64_t first, int64_t last, int64_t state, int64_t arc, const NgpulmNGramTrie* given,
                                        const NgpulmArcWriter* out, const float* log_probs, int64_t first_node) {
  const NGramTrie trie{*given};
  const auto write = [&](auto* arc_tokens) -> int64_t {
    using Token = std::remove_pointer_t<decltype(arc_tokens)>;
    for (int64_t context = first; context < last; ++context) {
      if (!trie.followed[context] || trie.state_of[context] != state)
        continue;  // a context that isn't a state has the number of a shorter one
      out->arc_offsets[state++] = int32_t(arc);
      SuffixWalk suffix(trie, trie.fail[context]);
      const int64_t first_arc = arc;
      for (int32_t node = trie.first_child[context]; node < trie.first_child[context + 1]; ++node) {
        const int32_t token = trie.tokens[node];
        if (!trie.possible[token]) continue;
        // Nodes of the highest order aren't linked, because only this code needs their targets.
        const int32_t target = token == trie.eos()        ? out->start_state
                               : node < trie.num_contexts ? trie.state_of[node]
                                                          : trie.state_of[suffix.node_of(token)];
        const float weight = log_probs[node - first_node];
        if (token == trie.unk()) {
          merge_copies(*out, arc_tokens, int32_t(first_arc), int32_t(arc), weight + out->share, target);
          arc += out->num_unk_tokens;
          continue;
        }
        arc_tokens[arc] = Token(std::min(token, trie.vocab_size));
        out->arc_weights[arc] = weight + out->no_share;
        out->arc_targets[arc] = target;
        ++arc;
      }
    }
    return -1;
  };
  return out->token_bytes == 2 ? write(static_cast<int16_t*>(out->arc_tokens)) : write(static_cast<int32_t*>(out->arc_tokens));
}
