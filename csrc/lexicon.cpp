// Build the trie of a lexicon, and convert a language model over words to one over forms.
#include "lexicon.hpp"

using namespace ngpulm;

// Build the trie of different spellings in ascending order. Nodes are numbered in depth-first order. All arrays have room for
// one node more than there are tokens. `sizes` gets the number of inner nodes and the number of children.
NGPULM_EXPORT int64_t ngpulm_spelling_trie(const int64_t* offsets, const int32_t* tokens, int64_t num_forms,
                                           int32_t* path_nodes, int32_t* depths, int32_t* end_forms, int64_t* child_offsets,
                                           int32_t* child_tokens, int32_t* child_nodes, int32_t* child_forms, int64_t* sizes) {
  return guarded([&]() -> int64_t {
    struct Child {
      int32_t parent, token, node, form;
    };
    std::vector<Child> children;
    int32_t num_nodes = 1;
    depths[0] = 0;
    for (int64_t form = 0; form < num_forms; ++form) {
      const int64_t first = offsets[form], last = offsets[form + 1], before = form ? offsets[form - 1] : first;
      const auto common = [&](int64_t one, int64_t end, int64_t other, int64_t other_end) {
        return std::mismatch(tokens + one, tokens + std::min(end, one + other_end - other), tokens + other).first -
               (tokens + one);
      };
      const int64_t shared = common(before, first, first, last);
      // If the next spelling continues a spelling, that spelling ends at an inner node.
      const bool goes_on = form + 1 < num_forms && common(first, last, last, offsets[form + 2]) == last - first;
      std::copy_n(path_nodes + before, shared, path_nodes + first);
      for (int64_t at = first + shared; at < last; ++at) {
        const int32_t parent = at == first ? 0 : path_nodes[at - 1];
        const bool is_leaf = at + 1 == last && !goes_on;
        path_nodes[at] = is_leaf ? -1 : num_nodes;
        children.push_back({parent, tokens[at], path_nodes[at], is_leaf ? int32_t(form) : -1});
        if (!is_leaf) depths[num_nodes++] = int32_t(at + 1 - first);
      }
      for (int64_t at = first; at < last; ++at)
        if (path_nodes[at] >= 0) end_forms[path_nodes[at]] = int32_t(form + 1);
    }
    end_forms[0] = int32_t(num_forms);

    std::fill_n(child_offsets, num_nodes + 1, 0);
    for (const Child& child : children) ++child_offsets[child.parent + 1];
    for (int32_t node = 0; node < num_nodes; ++node) child_offsets[node + 1] += child_offsets[node];
    std::vector<int64_t> next(child_offsets, child_offsets + num_nodes);
    for (const Child& child : children) {
      const int64_t at = next[child.parent]++;
      child_tokens[at] = child.token;
      child_nodes[at] = child.node;
      child_forms[at] = child.form;
    }
    sizes[0] = num_nodes;
    sizes[1] = int64_t(children.size());
    return 0;
  });
}

// Count the forms that the states `first .. last - 1` of a language model over words have: counts [S].
NGPULM_EXPORT int64_t ngpulm_count_forms(int64_t first, int64_t last, const NgpulmAutomaton* automaton,
                                         const NgpulmWords* words, int64_t* counts) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    FormReader reader(lm, *words);
    for (int64_t state = first; state < last; ++state) counts[state] = int64_t(reader.read(int32_t(state)).size());
    return 0;
  });
}

// Write the data about these forms; see `FormLM` in hf_ngpulm/lexicon/word_lm.py.
NGPULM_EXPORT int64_t ngpulm_read_forms(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmWords* words,
                                        const int64_t* offsets, int32_t* forms, double* log_probs, int32_t* targets,
                                        double* ends) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    FormReader reader(lm, *words);
    for (int64_t state = first; state < last; ++state) {
      int64_t at = offsets[state];
      for (const FormArc& arc : reader.read(int32_t(state))) {
        forms[at] = arc.form;
        log_probs[at] = arc.log_prob;
        targets[at++] = arc.target;
      }
      const bool has_end = reader.has_end(int32_t(state));
      ends[state] = has_end ? double(reader.end_weight(int32_t(state))) : std::numeric_limits<double>::quiet_NaN();
    }
    return 0;
  });
}

// log p(</s>) in some states of a language model over words.
NGPULM_EXPORT int64_t ngpulm_score_ends(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmWords* words,
                                        const int32_t* states, double* scores) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    const FormReader reader(lm, *words);
    for (int64_t row = first; row < last; ++row) scores[row] = reader.score_end(states[row]);
    return 0;
  });
}
