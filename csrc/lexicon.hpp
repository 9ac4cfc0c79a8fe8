// A lexicon: the spellings (forms) of words as a trie, and pairs of a word and its form. hf_ngpulm/lexicon/trie.py and
// word_lm.py describe the arrays.
#pragma once
#include "automaton.hpp"

// See hf_ngpulm/lexicon/trie.py.
struct NgpulmSpellingTrie {
  const int64_t* path_offsets;
  const int32_t *path_nodes, *path_tokens, *depths;
  const int64_t* child_offsets;
  const int32_t *child_tokens, *child_nodes, *child_forms, *end_forms;
  int32_t num_forms, num_nodes;
};

// See hf_ngpulm/lexicon/word_lm.py.
struct NgpulmWords {
  const int64_t *first_form, *forms_of_word, *first_word, *words_of_form;
  int32_t num_words;
};

namespace ngpulm {

struct FormArc {
  int32_t form;
  int32_t target;  // the language model's state after the form
  double log_prob;
};

// A language model over words (in single precision), converted to one over the forms that spell the words.
template <class Token>
class FormReader {
 public:
  FormReader(const Automaton<Token>& lm, const NgpulmWords& words) : lm(lm), words(words) {}

  int32_t end_token() const { return words.num_words + 1; }

  // Return the arcs of a state for the forms of its words, in ascending order.
  const std::vector<FormArc>& read(int32_t state) {
    arcs.clear();
    bool is_sorted = true, has_homographs = false;
    for (int32_t arc = lm.arc_offsets[state]; arc < lm.arc_offsets[state + 1]; ++arc) {
      const int32_t word = lm.arc_tokens[arc];
      if (word >= words.num_words) break;
      for (int64_t at = words.first_form[word]; at < words.first_form[word + 1]; ++at) {
        const int32_t form = int32_t(words.forms_of_word[at]);
        is_sorted &= arcs.empty() || arcs.back().form < form;
        if (words.first_word[form + 1] - words.first_word[form] > 1) has_homographs = true;
        arcs.push_back({form, lm.arc_targets[arc], double(lm.arc_weights[arc])});
      }
    }
    if (!is_sorted)
      std::sort(arcs.begin(), arcs.end(), [](const FormArc& one, const FormArc& other) { return one.form < other.form; });
    if (has_homographs) join_homographs(state);
    return arcs;
  }

  // Return log p(</s> | state). If a state has its own arc for </s>, it is the last arc.
  double score_end(int32_t state) const {
    double score = 0;
    while (!has_end(state)) {
      score += double(lm.backoff_weights[state]);
      state = lm.backoff_states[state];
    }
    return score + double(end_weight(state));
  }
  bool has_end(int32_t state) const {
    const int32_t end = lm.arc_offsets[state + 1];
    return (end > lm.arc_offsets[state] && lm.arc_tokens[end - 1] == end_token()) || lm.is_root(state);
  }
  float end_weight(int32_t state) const { return lm.arc_weights[lm.arc_offsets[state + 1] - 1]; }

  Automaton<Token> lm;
  NgpulmWords words;

 private:
  // Words with the same spelling are one form, with the sum of their probabilities. After it, the model continues as after
  // the likeliest word.
  void join_homographs(int32_t state) {
    size_t kept = 0;
    for (size_t i = 0; i < arcs.size(); ++i) {
      const int32_t form = arcs[i].form;
      if (kept && arcs[kept - 1].form == form) continue;
      arcs[kept] = arcs[i];
      const int64_t begin = words.first_word[form], end = words.first_word[form + 1];
      if (end - begin > 1) {
        double best = NEG_INF_DOUBLE, total = 0;
        int64_t likeliest = std::numeric_limits<int64_t>::max();
        for (int64_t at = begin; at < end; ++at) {
          const int64_t word = words.words_of_form[at];
          const Step step = lm.step(state, int32_t(word));
          if (step.score > best || (step.score == best && word < likeliest)) {
            best = step.score, likeliest = word;
            arcs[kept].target = step.state;
          }
        }
        for (int64_t at = begin; at < end; ++at)
          total += std::exp(double(lm.step(state, int32_t(words.words_of_form[at])).score) - best);
        arcs[kept].log_prob = best + std::log(total);
      }
      ++kept;
    }
    arcs.resize(kept);
  }

  std::vector<FormArc> arcs;
};

}  // namespace ngpulm
